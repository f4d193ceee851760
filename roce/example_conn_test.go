package roce_test

import (
	"bytes"
	"context"
	"fmt"
	"log"
	"net/netip"

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
