package roce_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// echo returns the messages of one client. Serve releases the QP, its CQ and the buffers when echo
// returns.
func echo(ctx context.Context, c *roce.Conn) error {
	qp, wcs := c.QP(), make([]roce.WC, 16)
	cq := qp.SendCQ()
	bufs, err := qp.PD().NewBufferPool(1024, 16, roce.LocalWrite)
	if err != nil {
		return err
	}
	for b, ok := bufs.TryGet(); ok && err == nil; b, ok = bufs.TryGet() {
		err = qp.PostRecv(roce.RecvWR{ID: b.ID(), SGEs: []roce.SGE{b.SGE(0, 1024)}})
	}
	for err == nil {
		var n int
		n, err = cq.Wait(ctx, wcs) // ends with the connection
		for _, wc := range wcs[:n] {
			b, _ := bufs.Buffer(wc.ID)
			switch {
			case wc.Status != roce.Success:
				return fmt.Errorf("echo: %v", wc.Status)
			case wc.Opcode == roce.WCRecv:
				err = qp.PostSend(roce.SendWR{ID: wc.ID, Op: roce.OpSend, Flags: roce.Signaled,
					SGEs: []roce.SGE{b.SGE(0, int(wc.ByteLen))}})
			default: // the echo was sent: receive the next message
				err = qp.PostRecv(roce.RecvWR{ID: wc.ID, SGEs: []roce.SGE{b.SGE(0, 1024)}})
			}
		}
	}
	return err
}

// A server that returns the messages of any number of clients. It ends when its context does.
func ExampleDevice_Serve() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	client, server := newHost(link.Port(0), roce.RC), newHost(link.Port(1), roce.RC)
	defer client.dev.Close()
	defer server.dev.Close()

	ctx, stop := context.WithCancel(context.Background())
	served := make(chan error)
	addr := netip.MustParseAddrPort("10.77.0.2:7471")
	go func() { served <- server.dev.Serve(ctx, addr, roce.ServeConfig{}, echo) }()

	conn, err := client.dev.Dial(ctx, addr, client.qp, roce.DialOptions{})
	for errors.Is(err, roce.ErrRefused) { // the server does not listen yet
		conn, err = client.dev.Dial(ctx, addr, client.qp, roce.DialOptions{})
	}
	if err != nil {
		log.Fatal(err)
	}
	copy(client.mr.Bytes(), "hello")
	if err := client.qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{client.mr.SGE(100, 100)}}); err != nil {
		log.Fatal(err)
	}
	if err := client.qp.PostSend(roce.SendWR{Op: roce.OpSend,
		SGEs: []roce.SGE{client.mr.SGE(0, 5)}}); err != nil {
		log.Fatal(err)
	}
	var wcs [1]roce.WC
	if _, err := client.cq.Wait(ctx, wcs[:]); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s, %v\n", client.mr.Bytes()[100:100+wcs[0].ByteLen], wcs[0].Status)
	if err := conn.Close(); err != nil {
		log.Fatal(err)
	}
	stop()
	fmt.Println("server:", <-served)
	// Output:
	// hello, success
	// server: <nil>
}
