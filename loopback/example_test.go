package loopback_test

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// In virtual time nothing happens between the calls of the program.
func ExampleNewLink() {
	link, err := loopback.NewLink(loopback.Config{
		Virtual: true, Seed: 1, Plan: loopback.Plan{Delay: 5 * time.Microsecond},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer link.Close()
	a, b := link.Port(0), link.Port(1)

	bufs := make([]driver.Buf, 1)
	a.Alloc(bufs)
	to, from := b.Info().MAC, a.Info().MAC
	f := append(bufs[0].B[:0], to[:]...)
	f = append(f, from[:]...)
	f = append(f, 0x88, 0xb5)
	bufs[0].B = append(f, "hello"...)
	if _, err := a.Send(bufs); err != nil {
		fmt.Println(err)
		return
	}

	sent := link.Now()
	fmt.Println("at once:", b.Receive(bufs))
	if t, ok := link.NextEvent(); ok {
		link.AdvanceTo(t)
	}
	fmt.Printf("after %v: %d, %q\n", time.Duration(link.Now()-sent), b.Receive(bufs),
		bufs[0].B[14:])
	b.Release(bufs)
	// Output:
	// at once: 0
	// after 5µs: 1, "hello"
}
