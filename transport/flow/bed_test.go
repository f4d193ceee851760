package flow

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const testTime = 20 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTime)
	t.Cleanup(cancel)
	return ctx
}

// bed is two devices with a layer each.
type bed struct {
	*testbed.Testbed
	t     testing.TB
	layer [2]*Layer
	port  uint16
}

func newBed(t testing.TB, c testbed.Config) *bed {
	t.Helper()
	tb, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Testbed: tb, t: t, port: 7500}
	t.Cleanup(func() {
		if err := tb.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	for i := range b.layer {
		var lc LayerConfig
		if tb.Sim != nil {
			lc.Clock, lc.Wait = tb.Link.Now, tb.Sim.Wait
		}
		if b.layer[i], err = NewLayer(tb.Dev[i], lc); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := b.layer[i].Close(); err != nil {
				t.Errorf("Layer.Close() = %v", err)
			}
		})
	}
	return b
}

// virtualBed is a bed in virtual time on a link of 978 Mb/s.
func virtualBed(t testing.TB) *bed {
	return newBed(t, testbed.Config{Virtual: true,
		Plan: loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 978e6}})
}

// connect connects a sender of layer 0 to a receiver of layer 1.
func (b *bed) connect(sc SenderConfig, rc ReceiverConfig) (s *Sender, r *Receiver) {
	b.t.Helper()
	b.port++
	addr := b.Addr(1, b.port)
	var errS, errR error
	ctx := within(b.t)
	if b.Sim != nil {
		l, err := b.Dev[1].Listen(addr, roce.ListenOptions{})
		if err != nil {
			b.t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		b.Sim.Go(func() {
			q, err := l.Accept(ctx)
			if errR = err; err == nil {
				r, errR = b.layer[1].AcceptRequest(ctx, q, rc)
			}
		})
		b.Sim.Go(func() { s, errS = b.layer[0].Dial(ctx, addr, sc) })
		if err := b.Sim.Run(time.Minute); err != nil {
			b.t.Fatal(err)
		}
	} else {
		l, err := b.layer[1].Listen(addr, rc)
		if err != nil {
			b.t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		done := make(chan struct{})
		go func() {
			defer close(done)
			r, errR = l.Accept(ctx)
		}()
		s, errS = b.layer[0].Dial(ctx, netip.AddrPortFrom(addr.Addr(), b.port), sc)
		<-done
	}
	if errS != nil || errR != nil {
		b.t.Fatalf("Dial() = %v, Accept() = %v", errS, errR)
	}
	b.t.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.t.Errorf("Sender.Close() = %v", err)
		}
		if err := r.Close(); err != nil {
			b.t.Errorf("Receiver.Close() = %v", err)
		}
	})
	return s, r
}

// schedulers returns a scheduler for each layer.
func (b *bed) schedulers(c SchedulerConfig) (s [2]*Scheduler) {
	b.t.Helper()
	for i := range s {
		c.Layers = []*Layer{b.layer[i]}
		if b.Sim != nil {
			c.Clock = b.Link.Now
		}
		var err error
		if s[i], err = NewScheduler(c); err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() {
			if err := s[i].Close(); err != nil {
				b.t.Errorf("Scheduler.Close() = %v", err)
			}
		})
		if b.Sim != nil {
			b.Sim.Add(s[i])
		}
	}
	return s
}

func (b *bed) channel(c ChannelConfig) *Channel {
	b.t.Helper()
	ch, err := b.layer[0].NewChannel(c)
	if err != nil {
		b.t.Fatal(err)
	}
	return ch
}

// must returns v if there is no error.
func must[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
