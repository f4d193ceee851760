package roce_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"sync"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// serve accepts one connection and waits until the peer disconnects.
func serve(ctx context.Context, h host, l *roce.Listener) {
	r, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("request: %s\n", bytes.TrimRight(r.PrivateData(), "\x00"))
	c, err := r.Accept(ctx, h.qp, roce.AcceptOptions{PrivateData: []byte("welcome")})
	if err != nil {
		log.Fatal(err)
	}
	<-c.Done()
	fmt.Println("ended:", c.Err())
}

// A connection with the connection manager. Either side may be a program on rdma_cm.
func ExampleDevice_Dial() {
	client, server, closeAll := newHosts(roce.RC)
	defer closeAll()
	ctx := context.Background()

	l, err := server.dev.Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		serve(ctx, server, l)
		close(served)
	}()

	c, err := client.dev.Dial(ctx, l.Addr(), client.qp,
		roce.DialOptions{PrivateData: []byte("hello")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("reply: %s\n", bytes.TrimRight(c.PrivateData(), "\x00"))
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	<-served
	// Output:
	// request: hello
	// reply: welcome
	// ended: roce: disconnected by the peer: dial again
}

// greet serves one client with its own queue pair. The client has a second to complete the
// connection.
func greet(ctx context.Context, h host, r *roce.Request) error {
	qp, err := h.dev.CreateQP(h.pd, roce.QPConfig{Type: roce.RC, SendCQ: h.cq})
	if err != nil {
		return errors.Join(err, r.Reject([]byte("no resources")))
	}
	defer qp.Close()
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	name := bytes.TrimRight(r.PrivateData(), "\x00")
	c, err := r.Accept(soon, qp,
		roce.AcceptOptions{PrivateData: fmt.Appendf(nil, "hello, %s", name)})
	if err != nil {
		return err
	}
	<-c.Done() // a real server would use the connection
	return c.Close()
}

// A server that answers each request in its own goroutine, so that a client that does not complete
// its connection delays no other.
func ExampleDevice_Listen() {
	client, server, closeAll := newHosts(roce.RC)
	defer closeAll()
	ctx := context.Background()

	anyPort := netip.MustParseAddrPort("10.77.0.2:0")
	l, err := server.dev.Listen(anyPort, roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var clients sync.WaitGroup
	defer clients.Wait()
	clients.Go(func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return // the listener is closed
			}
			clients.Go(func() {
				if err := greet(ctx, server, r); err != nil {
					log.Printf("%v: %v", r.RemoteAddr(), err)
				}
			})
		}
	})

	noListener := netip.AddrPortFrom(l.Addr().Addr(), 1)
	_, err = client.dev.Dial(ctx, noListener, client.qp, roce.DialOptions{})
	fmt.Println(err)
	c, err := client.dev.Dial(ctx, l.Addr(), client.qp,
		roce.DialOptions{PrivateData: []byte("Ada")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", bytes.TrimRight(c.PrivateData(), "\x00"))
	if err := errors.Join(c.Close(), l.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// roce: connection refused: invalid service ID (reason 8): no listener on that port
	// hello, Ada
}
