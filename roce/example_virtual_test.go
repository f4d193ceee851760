package roce_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// A client and a server connect in virtual time, over a link with a delay of 100 ms. The run takes
// no real time, and with Expert.Rand, too, it is the same each time.
func ExampleExpert_wait() {
	link, err := loopback.NewLink(loopback.Config{
		Virtual: true, Plan: loopback.Plan{Delay: 100 * time.Millisecond},
	})
	if err != nil {
		log.Fatal(err)
	}
	sim := loopback.NewSim(link)
	virtual := roce.WithExpert(roce.Expert{Clock: link.Now, Wait: sim.Wait})
	client := newHost(link.Port(0), roce.RC, virtual)
	server := newHost(link.Port(1), roce.RC, virtual)
	sim.Add(client.dev, server.dev)
	l := server.listen()
	ctx, start := context.Background(), link.Now()
	sim.Go(func() { server.accept(ctx, l) })
	sim.Go(func() {
		_, err := client.dev.Dial(ctx, l.Addr(), client.qp, roce.DialOptions{})
		fmt.Println(err, time.Duration(link.Now()-start))
	})
	fmt.Println(sim.Run(time.Minute))
	// Output:
	// <nil> 200ms
	// <nil>
}
