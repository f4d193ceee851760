package messenger_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"log"
	"net/netip"
	"sync"

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
// (messenger.Serve does this in one call, and listens itself.)
func echoServer(ctx context.Context, dev *roce.Device, l *roce.Listener) error {
	cfg, handler, err := messenger.ServeConfig(dev, messenger.Config{},
		messenger.Calls(func(_ context.Context, req []byte) (answer []byte, err error) {
			return req, nil
		}))
	if err != nil {
		return err
	}
	return l.Serve(ctx, cfg, handler)
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

// listen listens on the server of devices.
func listen(server *roce.Device) *roce.Listener {
	l, err := server.Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	return l
}

// serve runs f in the background. stop ends it.
func serve(f func(ctx context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			log.Fatal(err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// A client and a server for any number of clients.
func Example() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	l := listen(server) // before the client dials
	stop := serve(func(ctx context.Context) error { return echoServer(ctx, server, l) })
	defer stop()
	err := echoClient(context.Background(), client, l.Addr(), []byte("hello over RDMA"))
	if err != nil {
		log.Fatal(err)
	}
	// Output: hello over RDMA
}

// A server that receives the messages of each client in a loop and returns them.
func ExampleConn_Messages() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx := context.Background()
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
	l := listen(server)
	stop := serve(func(ctx context.Context) error { return l.Serve(ctx, cfg, handler) })

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
	ctx := context.Background()
	square := messenger.Calls(func(_ context.Context, req []byte) ([]byte, error) {
		n := binary.BigEndian.Uint32(req)
		return binary.BigEndian.AppendUint32(nil, n*n), nil
	})
	cfg, handler, err := messenger.ServeConfig(server, messenger.Config{}, square)
	if err != nil {
		log.Fatal(err)
	}
	cfg.MaxConns = 10
	l := listen(server)
	stop := serve(func(ctx context.Context) error { return l.Serve(ctx, cfg, handler) })

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
	// Output: [0 1 4 9 16]
}

// Clients read and count in memory of the server, whose program takes no part. The regions of all
// connections are in one protection domain.
func ExampleConn_ReadAt() {
	client, server := devices()
	defer client.Close()
	defer server.Close()
	ctx := context.Background()
	pd, err := server.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	table, err := pd.AllocMR(4096, roce.LocalWrite|roce.RemoteRead|roce.RemoteAtomic)
	if err != nil {
		log.Fatal(err)
	}
	copy(table.Bytes()[8:], "one-sided")
	describe := messenger.Calls(func(context.Context, []byte) ([]byte, error) {
		return table.Remote().MarshalBinary()
	})
	cfg, handler, err := messenger.ServeConfig(server, messenger.Config{PD: pd}, describe)
	if err != nil {
		log.Fatal(err)
	}
	l := listen(server)
	stop := serve(func(ctx context.Context) error { return l.Serve(ctx, cfg, handler) })

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
	// Output: one-sided, 0, now 5
}
