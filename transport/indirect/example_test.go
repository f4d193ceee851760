package indirect_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect"
)

// host is an Endpoint and memory that the peer may write and read.
type host struct {
	*indirect.Endpoint
	mr    *roce.MR
	space *indirect.Space
}

func newHost(link *loopback.Link, i int) host {
	dev, err := roce.New(link.Port(i)) // on a real interface: roce.Open("eth0")
	if err != nil {
		log.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	mr, err := pd.AllocMR(1<<20, roce.LocalWrite|roce.RemoteWrite)
	if err != nil {
		log.Fatal(err)
	}
	space := indirect.NewSpace(mr)
	e, err := indirect.New(dev, pd, indirect.Config{Host: space})
	if err != nil {
		log.Fatal(err)
	}
	return host{e, mr, space}
}

// A WRITE to memory that the peer's program is still using does not wait for it.
func Example() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	a, b := newHost(link, 0), newHost(link, 1)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	l, err := b.Listen(netip.MustParseAddrPort("10.77.0.2:7471"))
	if err != nil {
		log.Fatal(err)
	}
	served := make(chan error)
	go func() {
		if _, err := l.Accept(ctx); err != nil {
			log.Fatal(err)
		}
		served <- b.Serve(ctx)
	}()
	conn, err := a.Dial(ctx, l.Addr())
	if err != nil {
		log.Fatal(err)
	}

	b.space.Hold(4096, 100) // b's program uses it until the data is on its way
	go func() {
		for conn.Counters().Indirect == 0 {
			time.Sleep(time.Millisecond)
		}
		b.space.Free(4096, 100)
	}()
	copy(a.mr.Bytes(), "sent before b was registered")
	if err := conn.Write(ctx, a.mr, 0, 28, 4096); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.mr.Bytes()[4096:][:28])
	c := conn.Counters()
	fmt.Println(c.Direct, c.Indirect)

	stop()
	if err := <-served; err != nil {
		log.Fatal(err)
	}
	// Output:
	// sent before b was registered
	// 0 1
}
