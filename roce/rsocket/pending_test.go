package rsocket

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorxe/gorxe/internal/halfopen"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
)

// Clients of one host on a long path with losses: all are served, whether there are slots for all
// of them or for a quarter.
func TestManyClientsOfOneHost(t *testing.T) {
	for _, slots := range []int{32, 5} {
		synctest.Test(t, func(t *testing.T) {
			bed := newTestbed(t, testbed.Config{Link: loopback.Config{Seed: 1},
				Plan: loopback.Plan{Delay: 300 * time.Millisecond, Loss: 0.02}})
			small := Config{ReadBuffer: MinBuffer, WriteBuffer: MinBuffer}
			cfg := small
			cfg.MaxPending = slots
			cfg.Refused = func(_ netip.AddrPort, err error) { t.Errorf("refused: %v", err) }
			l := listenOn(t, bed, cfg)
			go func() {
				for {
					c, err := l.AcceptConn()
					if err != nil {
						return
					}
					go func() {
						_, _ = io.Copy(c, c)
						_ = c.Close() // the client has what it wants
					}()
				}
			}()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * 53 * time.Millisecond)
					for range 10 {
						c, err := Dial(t.Context(), bed.Dev[0], l.Addr().String(), small)
						if err != nil {
							t.Errorf("%d slots: %v", slots, err)
							continue
						}
						write(t, c, "x")
						if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
							t.Errorf("%d slots: %v", slots, err)
						}
						_ = c.Close() // its last acknowledgment may be lost
					}
				})
			}
			wg.Wait()
		})
	}
}

// A forged request makes way for an honest one when MaxPending is reached, and Refused learns why.
func TestReplacedRequest(t *testing.T) {
	bed := newTestbed(t, testbed.Config{Link: loopback.Config{Ports: 3}})
	refused := make(chan error, 1)
	l := listenOn(t, bed, Config{MaxPending: 1,
		Refused: func(_ netip.AddrPort, err error) { refused <- err }})
	cfg, err := Config{}.complete()
	check(t, err)
	e, err := newEndpoint(bed.Dev[0], &cfg)
	check(t, err)
	hello := e.newStream(&cfg).Hello()
	check(t, e.close())
	check(t, testbed.NewForger(bed.Link, 2, 1).REQ(l.l.Addr().Port(), hello.Append(nil)))
	for bed.Dev[1].Counters().Get("cm_received_req") == 0 {
		time.Sleep(time.Millisecond)
	}
	dial(t, bed, l, Config{})
	err = <-refused
	if !errors.Is(err, context.Canceled) || !errors.Is(err, halfopen.ErrReplaced) ||
		!strings.Contains(err.Error(), halfopen.ErrReplaced.Error()) {
		t.Errorf("Refused got %v, want %v", err, halfopen.ErrReplaced)
	}
}

// The default of MaxPending depends on the memory of a connection.
func TestMaxPending(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want int // 0: an error
	}{
		{Config{}, 68},
		{Config{ReadBuffer: MinBuffer, WriteBuffer: MinBuffer}, 128},
		{Config{ReadBuffer: 1 << 30}, 32},
		{Config{MaxPending: 1}, 1},
		{Config{MaxPending: 1000}, 1000},
		{Config{MaxPending: -1}, 0},
		{Config{MaxPending: 1 << 20}, 0},
	} {
		got, err := c.cfg.complete()
		if c.want == 0 {
			if !errors.Is(err, errConfig) || !strings.Contains(err.Error(), "MaxPending") {
				t.Errorf("MaxPending %d: %v, want %v", c.cfg.MaxPending, err, errConfig)
			}
		} else if err != nil || got.MaxPending != c.want {
			t.Errorf("MaxPending of %+v: %d, %v, want %d", c.cfg, got.MaxPending, err, c.want)
		}
	}
}
