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

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// serve takes one connection and answers what comes over it, until the peer hangs up.
func serve(ctx context.Context, h host, l *roce.Listener) {
	r, err := l.Accept(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("asked: %s\n", bytes.TrimRight(r.PrivateData(), "\x00"))
	c, err := r.Accept(ctx, h.qp, roce.AcceptOptions{PrivateData: []byte("come in")})
	if err != nil {
		log.Fatal(err)
	}
	<-c.Done()
	fmt.Println("the other end:", c.Err())
}

// A connection by the connection manager, as programs on rdma_cm make it: either end may be such a program.
func ExampleDevice_Dial() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, server := newHost(link, 0, roce.RC), newHost(link, 1, roce.RC)
	defer client.dev.Close()
	defer server.dev.Close()
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

	c, err := client.dev.Dial(ctx, l.Addr(), client.qp, roce.DialOptions{PrivateData: []byte("may I?")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("answered: %s\n", bytes.TrimRight(c.PrivateData(), "\x00"))
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	<-served
	// Output:
	// asked: may I?
	// answered: come in
	// the other end: roce: disconnected by the peer: dial again
}

// greet serves one client: a queue pair of its own, and no more than a second for the client to come.
func greet(ctx context.Context, h host, r *roce.Request) error {
	qp, err := h.dev.CreateQP(h.pd, roce.QPConfig{Type: roce.RC, SendCQ: h.cq})
	if err != nil {
		return errors.Join(err, r.Reject([]byte("no room")))
	}
	defer qp.Close()
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	c, err := r.Accept(soon, qp, roce.AcceptOptions{PrivateData: fmt.Appendf(nil, "hello, %s", bytes.TrimRight(r.PrivateData(), "\x00"))})
	if err != nil {
		return err
	}
	<-c.Done() // here it would use the connection
	return c.Close()
}

// A server: it takes requests as they come and answers each in a goroutine of its own, so that one who never comes keeps
// nobody waiting.
func ExampleDevice_Listen() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, server := newHost(link, 0, roce.RC), newHost(link, 1, roce.RC)
	defer client.dev.Close()
	defer server.dev.Close()
	ctx := context.Background()

	l, err := server.dev.Listen(netip.MustParseAddrPort("10.77.0.2:0"), roce.ListenOptions{}) // port 0: any
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

	nobody := netip.AddrPortFrom(l.Addr().Addr(), 1)
	_, err = client.dev.Dial(ctx, nobody, client.qp, roce.DialOptions{})
	fmt.Println(err)
	c, err := client.dev.Dial(ctx, l.Addr(), client.qp, roce.DialOptions{PrivateData: []byte("Ada")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", bytes.TrimRight(c.PrivateData(), "\x00"))
	if err := errors.Join(c.Close(), l.Close()); err != nil {
		log.Fatal(err)
	}
	// Output:
	// roce: connection refused: invalid service ID (reason 8): nobody listens on that port there
	// hello, Ada
}
