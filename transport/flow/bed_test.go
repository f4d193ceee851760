package flow

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/drive"
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
	sched []*Scheduler
	conns []interface{ Close() error }
}

// close closes everything in the right order.
func (b *bed) close() {
	for _, s := range b.sched {
		if err := s.Close(); err != nil {
			b.t.Errorf("Scheduler.Close() = %v", err)
		}
	}
	stop := b.drive()
	for _, c := range b.conns {
		if err := c.Close(); err != nil {
			b.t.Errorf("%T.Close() = %v", c, err)
		}
	}
	stop()
	for _, l := range b.layer {
		if l == nil {
			continue
		}
		if err := l.Close(); err != nil {
			b.t.Errorf("Layer.Close() = %v", err)
		}
	}
	if err := b.Close(); err != nil {
		b.t.Errorf("Close() = %v", err)
	}
}

func newBed(t testing.TB, c testbed.Config) *bed {
	t.Helper()
	tb, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Testbed: tb, t: t, port: 7500}
	t.Cleanup(b.close)
	for i := range b.layer {
		var lc LayerConfig
		if tb.Sim != nil {
			lc.Clock, lc.Wait = tb.Link.Now, tb.Sim.Wait
		}
		if b.layer[i], err = NewLayer(tb.Dev[i], lc); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// virtualBed is a bed in virtual time on a link of 978 Mb/s.
func virtualBed(t testing.TB) *bed {
	return newBed(t, testbed.Config{Virtual: true,
		Plan: loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 978e6}})
}

// replayBed is a lossy bed in virtual time with a random source of its own.
func replayBed(t testing.TB, rand func() uint64) *bed {
	link := loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 978e6, Loss: 0.001}
	return newBed(t, testbed.Config{Virtual: true, Seed: 3, Plan: link,
		Options: []roce.Option{roce.WithExpert(roce.Expert{Rand: rand})}})
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
	b.conns = append(b.conns, s, r)
	return s, r
}

// drivenConnect is connect for devices with any progress.
func (b *bed) drivenConnect(sc SenderConfig, rc ReceiverConfig) (*Sender, *Receiver) {
	b.t.Helper()
	defer b.drive()()
	return b.connect(sc, rc)
}

// drive drives devices with Manual progress until the returned function is called.
func (b *bed) drive() (stop func()) {
	var stops []func()
	for _, d := range b.Dev {
		if b.Sim == nil && d.Info().Progress == roce.Manual {
			stops = append(stops, drive.Device(d))
		}
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
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
		b.sched = append(b.sched, s[i])
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
