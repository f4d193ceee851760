package roce_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Keepalive: a detects that b does not answer any more, although a sends nothing. In virtual time
// this takes no real time; without the options for virtual time the program is the same.
func ExampleConnectOptions_keepAlive() {
	link, err := loopback.NewLink(loopback.Config{Virtual: true})
	if err != nil {
		log.Fatal(err)
	}
	sim := loopback.NewSim(link)
	virtual := roce.WithExpert(roce.Expert{Clock: link.Now, Wait: sim.Wait})
	a, b := newHost(link.Port(0), roce.RC, virtual), newHost(link.Port(1), roce.RC, virtual)
	sim.Add(a.dev, b.dev)
	l := b.listen()
	ctx := context.Background()
	sim.Go(func() { b.accept(ctx, l) })
	sim.Go(func() {
		c, err := a.dev.Dial(ctx, l.Addr(), a.qp, roce.DialOptions{
			ConnectOptions: roce.ConnectOptions{
				KeepAlive: time.Second, // check a silent peer each second
				Timeout:   15,          // 134 ms for an answer
				Retries:   7,
			},
		})
		if err != nil {
			log.Fatal(err)
		}
		// b's cable is pulled.
		cut, start := loopback.Plan{Loss: 1}, link.Now()
		if err := errors.Join(link.SetPlan(0, 1, cut), link.SetPlan(1, 0, cut)); err != nil {
			log.Fatal(err)
		}
		err = a.dev.Await(ctx, func() bool {
			select {
			case <-c.Done():
				return true
			default:
				return false
			}
		})
		if err != nil {
			log.Fatal(err)
		}
		took := time.Duration(link.Now() - start)
		fmt.Println(errors.Is(c.Err(), roce.ErrConnLost), took < 5*time.Second)
	})
	if err := sim.Run(time.Minute); err != nil {
		log.Fatal(err)
	}
	// Output: true true
}

// hello sends a message over a new connection and waits for the end of the connection. A QP of a
// connection that has ended is not used again: a new one is cheap.
func hello(ctx context.Context, h host, addr netip.AddrPort) error {
	qp, err := h.dev.CreateQP(h.pd, roce.QPConfig{SendCQ: h.cq})
	if err != nil {
		return err
	}
	defer qp.Close()
	c, err := h.dev.Dial(ctx, addr, qp, roce.DialOptions{})
	if err != nil {
		return err
	}
	defer c.Close()
	select {
	case <-c.Done():
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reconnecting: the client dials again when its connection ends, after a pause that grows with each
// failure in a row.
func ExampleConn_reconnect() {
	client, server, closeAll := newHosts(roce.RC)
	defer closeAll()
	ctx := context.Background()
	addr := netip.MustParseAddrPort("10.77.0.2:7471")

	serverCtx, stop := context.WithCancel(ctx)
	defer stop()
	l, err := server.dev.Listen(addr, roce.ListenOptions{})
	if err != nil {
		log.Fatal(err)
	}
	go l.Serve(serverCtx, roce.ServeConfig{}, func(context.Context, *roce.Conn) error {
		return nil // ends the connection
	})

	const shortest, longest = time.Millisecond, time.Second
	pause := shortest
	for attempt := 1; attempt <= 3; attempt++ {
		err := hello(ctx, client, addr)
		fmt.Println(errors.Is(err, roce.ErrDisconnected))
		if errors.Is(err, roce.ErrDisconnected) {
			pause = shortest // it was connected
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
	// Output:
	// true
	// true
	// true
}

// Fault injection: a filter loses one packet, and a Plan makes the link bad in both directions. The
// data arrives nevertheless, and the counters tell what was necessary.
func ExampleDevice_Counters() {
	link, err := loopback.NewLink(loopback.Config{
		Seed: 1, Plan: loopback.Plan{Loss: 0.05, Duplicate: 0.05, Reorder: 0.05},
	})
	if err != nil {
		log.Fatal(err)
	}
	a, b := newHost(link.Port(0), roce.RC), newHost(link.Port(1), roce.RC)
	defer a.dev.Close()
	defer b.dev.Close()
	connectHosts(a, b)
	lost := false
	link.SetFilter(0, 1, func([]byte) loopback.Action {
		if lost {
			return loopback.Pass
		}
		lost = true
		return loopback.Drop // the first packet of a
	})

	remote := b.mr.Remote()
	for i := range 100 {
		if err := a.qp.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
			SGEs: []roce.SGE{a.mr.SGE(0, 4096)}, RemoteAddr: remote.Addr, RKey: remote.RKey,
		}); err != nil {
			log.Fatal(err)
		}
		if wc := a.wait(); wc.Status != roce.Success {
			log.Fatal(i, wc.Status)
		}
	}
	c := a.dev.Counters()
	fmt.Println("retransmitted:", c.Retransmits > 0)
	fmt.Println("by name:", c.Get("retransmits") == c.Retransmits)
	for name, value := range c.All() { // for a log, or a monitoring system
		if name == "retry_exceeded_err" {
			fmt.Println(name, value)
		}
	}
	fmt.Println("lost on the link:", link.Faults(0, 1).Lost > 0)
	// Output:
	// retransmitted: true
	// by name: true
	// retry_exceeded_err 0
	// lost on the link: true
}
