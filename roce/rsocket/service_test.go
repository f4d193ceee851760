package rsocket

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// mortalPort is a port that fails with err from some time on.
type mortalPort struct {
	*loopback.Port
	err atomic.Pointer[error]
}

func (p *mortalPort) Wait(d time.Duration) error {
	err := p.Port.Wait(d)
	if e := p.err.Load(); e != nil {
		return *e
	}
	return err
}

// When the device has failed, calls return why, and do not advise to dial again.
func TestDeviceFails(t *testing.T) {
	for failure, want := range map[error]error{
		driver.ErrServiceEnded: roce.ErrServiceEnded, driver.ErrGone: roce.ErrGone,
	} {
		var port *mortalPort
		bed := newTestbed(t, testbed.Config{Wrap: func(side int, p driver.Port) driver.Port {
			if side == 1 {
				return p
			}
			port = &mortalPort{Port: p.(*loopback.Port)}
			return port
		}})
		client, _ := dial(t, bed, listenOn(t, bed, Config{}), Config{})
		got := make(chan error, 1)
		go func() {
			_, err := client.Read(make([]byte, 1))
			got <- err
		}()
		time.Sleep(10 * time.Millisecond)
		port.err.Store(&failure)
		port.Wake()
		err := <-got
		_, later := client.Write([]byte("x"))
		for _, err := range []error{err, later, client.CloseWrite()} {
			if !errors.Is(err, want) || strings.Contains(err.Error(), "dial again") {
				t.Errorf("%v: %v, want %v and no advice to dial again", failure, err, want)
			}
		}
	}
}
