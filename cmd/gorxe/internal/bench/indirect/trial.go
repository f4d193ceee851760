package indirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/bench/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

const (
	window     = 8  // frames in flight
	ackTimeout = 14 // Local ACK Timeout exponent: 67 ms. The engine probes long before
	segment    = 16 << 10
	// patience bounds a transfer: nothing here takes so long but by mistake.
	patience = 10 * time.Second
	stamp    = 8 // bytes at both ends of a transfer that say which one it is
)

// trial is one measurement: so many transfers one after the other, by one method.
type trial struct {
	*experiment
	world       *world
	traditional bool
	transfers   int
	size        int
	timeout     time.Duration
	rate        int64 // bits per second; 0: as fast as it goes
	seed        uint64
	cpus        []int
}

// outcome is what a trial found.
type outcome struct {
	total    time.Duration
	hindered int           // transfers that met an invalid answer or a time-out
	lost     time.Duration // time of the hindered ones
	counters core.Counters // of the initiator
	served   core.Counters // of the responder
}

// smooth is the mean time of a transfer that nothing hindered, rough of the others.
func (o *outcome) smooth(n int) time.Duration {
	return (o.total - o.lost) / time.Duration(max(1, n-o.hindered))
}
func (o *outcome) rough() time.Duration { return o.lost / time.Duration(max(1, o.hindered)) }

// side is one end of a trial.
type side struct {
	dev  *roce.Device
	ep   *indirect.Endpoint
	conn *indirect.Conn
	mr   *roce.MR
}

// run makes the two ends, lets the transfers happen, and takes everything down.
func (t *trial) run(ctx context.Context) (o outcome, err error) {
	ports, err := t.world.ports(t.experiment, t.rate, t.seed)
	if err != nil {
		return o, err
	}
	var sides [2]*side
	defer func() {
		for i := range sides {
			if sides[i] != nil {
				err = errors.Join(err, sides[i].dev.Close())
			}
		}
	}()
	var arrived atomic.Uint64
	var wrong atomic.Pointer[error]
	for i := range sides {
		dev, err := roce.New(ports[i], roce.WithProgress(roce.Manual), roce.WithMaxWindow(window))
		if err != nil {
			if i == 0 {
				err = errors.Join(err, ports[1].Close())
			}
			return o, err
		}
		sides[i] = &side{dev: dev}
		if err := sides[i].open(t, i, &arrived, &wrong); err != nil {
			return o, err
		}
	}
	if err := join(ctx, sides[0].conn, sides[1].conn); err != nil {
		return o, err
	}
	return t.measure(ctx, &sides, &arrived, &wrong)
}

func (s *side) open(t *trial, i int, arrived *atomic.Uint64, wrong *atomic.Pointer[error]) error {
	pd, err := s.dev.AllocPD()
	if err != nil {
		return err
	}
	if s.mr, err = pd.AllocMR(t.size, roce.LocalWrite|roce.RemoteWrite); err != nil {
		return err
	}
	space := indirect.NewSpace(s.mr)
	space.Delivered = func(_ *indirect.Request, b []byte) {
		n := arrived.Add(1)
		if first, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-stamp:]); first != n || last != n {
			err := fmt.Errorf("transfer %d carries the bytes of %d and %d", n, first, last)
			wrong.Store(&err)
		}
	}
	frp := 0.0
	if i == 1 {
		frp = t.frp
	}
	s.ep, err = indirect.New(s.dev, pd, indirect.Config{
		Host: space, Traditional: t.traditional, MaxTransfer: t.size, Segment: segment, MaxConns: 1, Timeout: t.timeout, Patience: patience,
		RC:     roce.ConnectOptions{MTU: t.mtu, Timeout: ackTimeout},
		Faults: indirect.Faults{Seed: t.seed, FailedRegistration: frp},
	})
	if err != nil {
		return err
	}
	s.conn, err = s.ep.Prepare()
	return err
}

// join connects the two halves, each of which knows the other.
func join(ctx context.Context, a, b *indirect.Conn) error {
	atA, toA := a.Local()
	atB, toB := b.Local()
	if err := a.Join(ctx, atB, toB); err != nil {
		return err
	}
	return b.Join(ctx, atA, toA)
}

// measure runs each side on a thread and a CPU of its own.
func (t *trial) measure(ctx context.Context, sides *[2]*side, arrived *atomic.Uint64, wrong *atomic.Pointer[error]) (o outcome, err error) {
	var stop atomic.Bool
	served := make(chan error, 1)
	go func() { served <- onCPU(t.cpus[1], func() error { return sides[1].serve(&stop) }) }()
	if t.pings {
		end, perr := startPings(t.world)
		if perr != nil {
			stop.Store(true)
			return o, errors.Join(perr, <-served)
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	err = onCPU(t.cpus[0], func() error { return sides[0].pour(ctx, t, &o) })
	stop.Store(true)
	err = errors.Join(err, <-served)
	o.counters, o.served = sides[0].conn.Counters(), sides[1].conn.Counters()
	if bad := wrong.Load(); err == nil && bad != nil {
		err = *bad
	}
	if n := arrived.Load(); err == nil && n != uint64(t.transfers) {
		err = fmt.Errorf("%d of %d transfers arrived", n, t.transfers)
	}
	return o, err
}

// onCPU runs f on a thread of its own, which ends with it.
func onCPU(cpu int, f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: a pinned thread is not given back
		if err := kit.Pin(cpu); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}

// serve turns the responder's crank.
func (s *side) serve(stop *atomic.Bool) error {
	var evs [4]indirect.Event
	for !stop.Load() {
		if err := ended(evs[:s.ep.Poll(evs[:])]); err != nil {
			return fmt.Errorf("responder: %w", err)
		}
	}
	return nil
}

// ended finds the end of the connection among events.
func ended(evs []indirect.Event) error {
	for i := range evs {
		if evs[i].Kind == indirect.Down {
			return evs[i].Err
		}
	}
	return nil
}

// pour makes the transfers, one after the other.
func (s *side) pour(ctx context.Context, t *trial, o *outcome) error {
	b := s.mr.Bytes()
	start := time.Now()
	last, before := start, core.Counters{}
	for n := uint64(1); n <= uint64(t.transfers); n++ {
		binary.LittleEndian.PutUint64(b, n)
		binary.LittleEndian.PutUint64(b[len(b)-stamp:], n)
		if err := s.conn.Post(&indirect.Transfer{Kind: indirect.Write, MR: s.mr, Len: t.size, Cookie: n}); err != nil {
			return err
		}
		if err := s.await(ctx, last); err != nil {
			return fmt.Errorf("transfer %d of %d: %w", n, t.transfers, err)
		}
		now, c := time.Now(), s.conn.Counters()
		if c.InvalidAnswers > before.InvalidAnswers || c.Timeouts > before.Timeouts {
			o.hindered++
			o.lost += now.Sub(last)
		}
		last, before = now, c
	}
	o.total = last.Sub(start)
	return nil
}

// lookEvery is how many turns pass between two looks at the clock and the outside world.
const lookEvery = 4096

// await spins until the transfer under way is done.
func (s *side) await(ctx context.Context, began time.Time) error {
	var evs [4]indirect.Event
	for turn := 1; ; turn++ {
		for _, ev := range evs[:s.ep.Poll(evs[:])] {
			switch {
			case ev.Kind == indirect.Down:
				return ev.Err
			case ev.Kind == indirect.Done && ev.Status != indirect.StatusOK:
				return errors.Join(fmt.Errorf("%w: %v", indirect.ErrTransfer, ev.Status), s.conn.Err())
			case ev.Kind == indirect.Done:
				return nil
			}
		}
		if turn%lookEvery != 0 {
			continue
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if time.Since(began) > 2*patience {
			return errors.New("nothing moves: something else on this machine takes all its time")
		}
	}
}
