package driver_test

import (
	"context"
	"fmt"
	"log"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// counter is a port that counts the frames that its owner sends. The methods that it does not
// define are those of the inner port.
type counter struct {
	driver.Port
	sent int // only the owner changes it
}

func (c *counter) Send(bufs []driver.Buf) (int, error) {
	n, err := c.Port.Send(bufs)
	c.sent += n
	return n, err
}

// Unwrap lets Find look for optional interfaces, such as Network, in the inner port.
func (c *counter) Unwrap() driver.Port { return c.Port }

// A wrapper around a port of a link in memory. It works the same around the port that xdp.Open
// returns.
func ExampleWrapper() {
	link, err := loopback.NewLink(loopback.Config{})
	if err != nil {
		log.Fatal(err)
	}
	port := &counter{Port: link.Port(0)}
	dev, err := roce.New(port)
	if err != nil {
		log.Fatal(err)
	}
	pd, err := dev.AllocPD()
	if err != nil {
		log.Fatal(err)
	}
	qp, err := dev.CreateQP(pd, roce.QPConfig{})
	if err != nil {
		log.Fatal(err)
	}
	peer := roce.Endpoint{QPN: 0x11, GID: roce.GIDFromAddr(link.Port(1).Addrs()[0].Addr())}
	if err := qp.Connect(context.Background(), peer, roce.ConnectOptions{}); err != nil {
		log.Fatal(err)
	}
	if err := qp.PostSend(roce.SendWR{Op: roce.OpSend, Inline: []byte("hello")}); err != nil {
		log.Fatal(err)
	}
	for link.Faults(0, 1).Frames == 0 { // the device sends in its own goroutine
		dev.Progress()
	}
	if err := dev.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(port.sent > 0)
	// Output: true
}
