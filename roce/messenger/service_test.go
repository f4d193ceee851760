package messenger_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// mortalPort is a port whose node service may end.
type mortalPort struct {
	*loopback.Port
	ended atomic.Bool
}

func (p *mortalPort) Wait(d time.Duration) error {
	err := p.Port.Wait(d)
	if p.ended.Load() {
		return driver.ErrServiceEnded
	}
	return err
}

// When the node service ends, calls that wait, and later ones, return roce.ErrServiceEnded.
func TestServiceEnds(t *testing.T) {
	var port *mortalPort
	b := newBed(t, testbed.Config{Wrap: func(side int, p driver.Port) driver.Port {
		if side == 1 {
			return p
		}
		port = &mortalPort{Port: p.(*loopback.Port)}
		return port
	}})
	x, _ := connect(t, b, messenger.Config{}, messenger.Config{})
	got := make(chan error, 1)
	go func() {
		_, err := x.Recv(background(t))
		got <- err
	}()
	time.Sleep(10 * time.Millisecond)
	port.ended.Store(true)
	port.Wake()
	err := <-got
	_, later := x.Call(background(t), nil)
	for _, err := range []error{err, later, x.Send(background(t), nil)} {
		if !errors.Is(err, roce.ErrServiceEnded) {
			t.Errorf("%v, want %v", err, roce.ErrServiceEnded)
		}
	}
}
