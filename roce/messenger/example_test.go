package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// echoClient sends msg to the server at addr and prints what it returns.
func echoClient(ctx context.Context, dev *roce.Device, addr netip.AddrPort, msg []byte) error {
	c, err := messenger.Dial(ctx, dev, addr, messenger.Config{})
	if err != nil {
		return err
	}
	defer c.Close()
	answer, err := c.Call(ctx, msg)
	if err != nil {
		return err
	}
	defer answer.Release()
	fmt.Printf("%s\n", answer.Bytes())
	return nil
}

// echoServer answers the calls of any number of clients with the same bytes, until ctx is done.
func echoServer(ctx context.Context, dev *roce.Device, addr netip.AddrPort) error {
	return messenger.Serve(ctx, dev, addr, messenger.Config{},
		messenger.Calls(func(_ context.Context, req []byte) (answer []byte, err error) {
			return req, nil
		}))
}

// devices returns two devices on a link in memory. On a network, use roce.Open.
func devices() (client, server *roce.Device) {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	var devs [2]*roce.Device
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i)); err != nil {
			log.Fatal(err)
		}
	}
	return devs[0], devs[1]
}

var serverAddr = netip.MustParseAddrPort("10.77.0.2:7471")

// A client and a server for any number of clients.
func Example() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := echoServer(ctx, server, serverAddr); err != nil {
			log.Fatal(err)
		}
	})
	err := echoClient(ctx, client, serverAddr, []byte("hello over RDMA"))
	for errors.Is(err, roce.ErrRefused) { // the server does not listen yet
		time.Sleep(time.Millisecond)
		err = echoClient(ctx, client, serverAddr, []byte("hello over RDMA"))
	}
	if err != nil {
		log.Fatal(err)
	}
	stop()
	wg.Wait()
	// Output: hello over RDMA
}

// A server that receives the messages of each client in a loop and returns them.
func ExampleConn_Messages() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	cfg, handler, err := messenger.ServeConfig(server, messenger.Config{},
		func(ctx context.Context, c *messenger.Conn) error {
			for m, err := range c.Messages(ctx) {
				if err != nil {
					return err
				}
				if err := c.Send(ctx, m.Bytes()); err != nil {
					return err
				}
			}
			return nil // the client has closed the connection
		})
	if err != nil {
		log.Fatal(err)
	}
	l, err := server.Listen(serverAddr, roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, cfg, handler); err != nil {
			log.Fatal(err)
		}
	})

	c, err := messenger.Dial(ctx, client, l.Addr(), messenger.Config{})
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range []string{"one", "two", "three"} {
		if err := c.Send(ctx, []byte(text)); err != nil {
			log.Fatal(err)
		}
	}
	for range 3 {
		m, err := c.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", m.Bytes())
		m.Release()
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	stop()
	wg.Wait()
	// Output:
	// one
	// two
	// three
}

// Many goroutines call at the same time over one connection. The server is limited to 10 clients.
func ExampleServeConfig() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	square := messenger.Calls(func(_ context.Context, req []byte) ([]byte, error) {
		n := binary.BigEndian.Uint32(req)
		return binary.BigEndian.AppendUint32(nil, n*n), nil
	})
	l, err := server.Listen(serverAddr, roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	cfg, handler, err := messenger.ServeConfig(server, messenger.Config{}, square)
	if err != nil {
		log.Fatal(err)
	}
	cfg.MaxConns = 10
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, cfg, handler); err != nil {
			log.Fatal(err)
		}
	})

	c, err := messenger.Dial(ctx, client, l.Addr(), messenger.Config{})
	if err != nil {
		log.Fatal(err)
	}
	squares := make([]uint32, 5)
	var calls sync.WaitGroup
	for i := range squares {
		calls.Go(func() {
			answer, err := c.Call(ctx, binary.BigEndian.AppendUint32(nil, uint32(i)))
			if err != nil {
				log.Fatal(err)
			}
			defer answer.Release()
			squares[i] = binary.BigEndian.Uint32(answer.Bytes())
		})
	}
	calls.Wait()
	fmt.Println(squares)
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	stop()
	wg.Wait()
	// Output: [0 1 4 9 16]
}

// Clients read and count in memory of the server, whose program takes no part. The regions of all
// connections are in one protection domain.
func ExampleConn_ReadAt() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx, stop := context.WithCancel(context.Background())
	pd, err := server.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	table, err := pd.AllocMR(4096, roce.LocalWrite|roce.RemoteRead|roce.RemoteAtomic)
	if err != nil {
		log.Fatal(err)
	}
	copy(table.Bytes()[8:], "one-sided")
	l, err := server.Listen(serverAddr, roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	describe := messenger.Calls(func(context.Context, []byte) ([]byte, error) {
		return table.Remote().MarshalBinary()
	})
	cfg, handler, err := messenger.ServeConfig(server, messenger.Config{PD: pd}, describe)
	if err != nil {
		log.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := l.Serve(ctx, cfg, handler); err != nil {
			log.Fatal(err)
		}
	})

	c, err := messenger.Dial(ctx, client, l.Addr(), messenger.Config{})
	if err != nil {
		log.Fatal(err)
	}
	answer, err := c.Call(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	var remote roce.RemoteBuffer
	if err := remote.UnmarshalBinary(answer.Bytes()); err != nil {
		log.Fatal(err)
	}
	answer.Release()

	text := make([]byte, 9)
	if err := c.ReadAt(ctx, text, remote, 8); err != nil {
		log.Fatal(err)
	}
	before, err := c.FetchAdd(ctx, remote, 0, 5)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %d, now %d\n", text, before, table.Load64(0))
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	stop()
	wg.Wait()
	// Output: one-sided, 0, now 5
}
