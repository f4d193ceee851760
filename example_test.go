package gorxe_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// side is a device with what a connection needs.
type side struct {
	dev *roce.Device
	mr  *roce.MR
	cq  *roce.CQ
	qp  *roce.QP
}

// open creates the objects of one side: a protection domain, 4 KiB of registered memory, a
// completion queue and a queue pair.
func open(port roce.Port) (s side, err error) {
	if s.dev, err = roce.New(port); err != nil { // or roce.Open("eth0")
		return s, err
	}
	pd, err := s.dev.AllocPD()
	if err != nil {
		return s, err
	}
	if s.mr, err = pd.AllocMR(4096, roce.LocalWrite|roce.RemoteRead); err != nil {
		return s, err
	}
	if s.cq, err = s.dev.CreateCQ(256); err != nil {
		return s, err
	}
	s.qp, err = s.dev.CreateQP(pd, roce.QPConfig{Type: roce.RC, SendCQ: s.cq})
	return s, err
}

// The client reads the server's memory with an RDMA READ. The server's program takes no part in it.
func Example() {
	ctx := context.Background()
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	server, err := open(link.Port(0))
	if err != nil {
		log.Fatal(err)
	}
	defer server.dev.Close()
	client, err := open(link.Port(1))
	if err != nil {
		log.Fatal(err)
	}
	defer client.dev.Close()

	// Each side must know the other one's Endpoint, and the client must know where the memory is.
	// Hosts exchange these over TCP, or use Device.Dial and Device.Listen.
	if err := server.qp.Connect(ctx, client.qp.Local(), roce.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := client.qp.Connect(ctx, server.qp.Local(), roce.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
	remote := server.mr.Remote()
	copy(server.mr.Bytes(), "hello from the server's memory")

	err = client.qp.PostSend(roce.SendWR{
		Op: roce.OpRead, Flags: roce.Signaled,
		SGEs:       []roce.SGE{client.mr.SGE(0, 30)}, // where the data goes
		RemoteAddr: remote.Addr, RKey: remote.RKey,   // where it comes from
	})
	if err != nil {
		log.Fatal(err)
	}
	wcs := make([]roce.WC, 1)
	if _, err := client.cq.Wait(ctx, wcs); err != nil {
		log.Fatal(err)
	}
	if err := wcs[0].Err(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", client.mr.Bytes()[:30])
	// Output:
	// hello from the server's memory
}
