package roce_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// send transmits msg to the program that listens at addr and waits until it has arrived.
func send(ctx context.Context, dev *roce.Device, addr netip.AddrPort, msg []byte) error {
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	mr, err := pd.AllocMR(len(msg), roce.LocalWrite) // registered memory
	if err != nil {
		return err
	}
	defer mr.Close()
	cq, err := dev.CreateCQ(256)
	if err != nil {
		return err
	}
	defer cq.Close()
	qp, err := dev.CreateQP(pd, roce.QPConfig{Type: roce.RC, SendCQ: cq})
	if err != nil {
		return err
	}
	defer qp.Close()
	conn, err := dev.Dial(ctx, addr, qp, roce.DialOptions{}) // as rdma_connect does
	if err != nil {
		return err
	}
	defer conn.Close()

	copy(mr.Bytes(), msg)
	err = qp.PostSend(roce.SendWR{
		Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{mr.SGE(0, len(msg))},
	})
	if err != nil {
		return err
	}
	wcs := make([]roce.WC, 1)
	if _, err := cq.Wait(ctx, wcs); err != nil {
		return err
	}
	if wcs[0].Status != roce.Success {
		return fmt.Errorf("send to %v: %v", addr, wcs[0].Status)
	}
	return nil
}

// receive prints the first message of the next connection.
func receive(ctx context.Context, h host, l *roce.Listener) error {
	buf := h.mr.SGE(0, h.mr.Len())
	if err := h.qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{buf}}); err != nil {
		return err
	}
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	conn, err := req.Accept(ctx, h.qp, roce.AcceptOptions{})
	if err != nil {
		return err
	}
	defer conn.Close()
	wcs := make([]roce.WC, 1)
	if _, err := h.cq.Wait(ctx, wcs); err != nil {
		return err
	}
	fmt.Printf("%s\n", h.mr.Bytes()[:wcs[0].ByteLen])
	<-conn.Done()
	return nil
}

// One message with verbs. Package messenger needs much less code for the same.
func Example() {
	client, server, closeAll := newHosts(roce.RC)
	defer closeAll()
	ctx := context.Background()
	l, err := server.dev.Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- receive(ctx, server, l) }()
	if err := send(ctx, client.dev, l.Addr(), []byte("hello over RDMA")); err != nil {
		log.Fatal(err)
	}
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output: hello over RDMA
}
