package messenger_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// simulate runs a client and a server over a path of 100 ms that loses 10 % of the packets. It
// returns how long the client took in virtual time, and a digest of all packets.
func simulate(seed uint64) (took time.Duration, trace uint64, err error) {
	link, err := loopback.NewLink(loopback.Config{Virtual: true, Seed: seed,
		Plan: loopback.Plan{Delay: 50 * time.Millisecond, Loss: 0.1}})
	if err != nil {
		return 0, 0, err
	}
	defer link.Close()
	sim := loopback.NewSim(link)
	var devs [2]*roce.Device
	for i := range devs {
		// All time and all randomness come from the simulation.
		expert := roce.Expert{Clock: link.Now, Wait: sim.Wait,
			Rand: rand.New(rand.NewPCG(seed, uint64(i))).Uint64}
		if devs[i], err = roce.New(link.Port(i), roce.WithExpert(expert)); err != nil {
			return 0, 0, err
		}
		sim.Add(devs[i])
	}
	cfg := messenger.Config{Go: sim.Go} // goroutines are processes of the simulation
	l, err := devs[1].Listen(netip.MustParseAddrPort("10.77.0.2:7471"), roce.ListenOptions{})
	if err != nil {
		return 0, 0, err
	}
	serve, handler, err := messenger.ServeConfig(devs[1], cfg, messenger.Calls(
		func(_ context.Context, req []byte) (answer []byte, err error) { return req, nil }))
	if err != nil {
		return 0, 0, err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var served, called error
	sim.Go(func() { served = l.Serve(ctx, serve, handler) })
	sim.Go(func() {
		defer stop()
		start := link.Now()
		c, err := messenger.Dial(ctx, devs[0], l.Addr(), cfg)
		if err != nil {
			called = err
			return
		}
		for range 20 {
			answer, err := c.Call(ctx, []byte("ping"))
			called = errors.Join(called, err)
			answer.Release()
		}
		called = errors.Join(called, c.Close())
		took = time.Duration(link.Now() - start)
	})
	err = sim.Run(time.Hour) // of virtual time
	err = errors.Join(err, served, called, devs[0].Close(), devs[1].Close())
	return took, link.TraceHash(), err
}

// Tests with losses and long paths take no real time in virtual time, and two runs with the same
// seed exchange the same packets at the same nanoseconds.
func Example_virtualTime() {
	took, trace, err := simulate(1)
	if err != nil {
		log.Fatal(err)
	}
	again, traceAgain, err := simulate(1)
	if err != nil {
		log.Fatal(err)
	}
	_, other, err := simulate(2)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("at least 2 s:", took >= 2*time.Second)
	fmt.Println("the same again:", took == again && trace == traceAgain)
	fmt.Println("the same with another seed:", trace == other)
	// Output:
	// at least 2 s: true
	// the same again: true
	// the same with another seed: false
}
