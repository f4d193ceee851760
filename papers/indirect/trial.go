package indirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

const (
	window  = 8 // frames in flight
	segment = 16 << 10
	entries = 16 // transfers that are not released yet, at most; each has memory of its own at both ends
	// patience bounds a transfer: nothing here takes so long but by mistake.
	patience = 30 * time.Second
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
	pingEvery   time.Duration
	seed        uint64
	cpus        []int
}

// outcome is what a trial found.
type outcome struct {
	total    time.Duration
	stolen   time.Duration // in real time: when a side's thread did not run, the worse side's
	waited   time.Duration // from requests to their acknowledgements, real or simulated: before the data could go
	counters core.Counters // of the initiator
	served   core.Counters // of the responder
}

// side is one end of a trial.
type side struct {
	dev  *roce.Device
	ep   *indirect.Endpoint
	conn *indirect.Conn
	mr   *roce.MR
	watch
}

// run makes the two ends, lets the transfers happen, and takes everything down.
func (t *trial) run(ctx context.Context) (o outcome, err error) {
	l, err := t.world.wire(t)
	if err != nil {
		return o, err
	}
	p := &pair{wire: l}
	defer func() { err = errors.Join(err, p.close()) }()
	for i := range p.sides {
		if err := p.open(t, i); err != nil {
			return o, err
		}
	}
	if err := join(ctx, p.sides[0].conn, p.sides[1].conn); err != nil {
		return o, err
	}
	if p.virtual() {
		err = p.simulate(ctx, t, &o)
	} else {
		err = p.measure(ctx, t, &o)
	}
	o.counters, o.served = p.sides[0].conn.Counters(), p.sides[1].conn.Counters()
	if bad := p.wrong.Load(); err == nil && bad != nil {
		err = *bad
	}
	if n := p.arrived.Load(); err == nil && n != uint64(t.transfers) {
		err = fmt.Errorf("%d of %d transfers arrived", n, t.transfers)
	}
	return o, err
}

// pair is both ends of a trial.
type pair struct {
	*wire
	sides   [2]*side
	arrived atomic.Uint64         // transfers
	wrong   atomic.Pointer[error] // with the wrong bytes
}

func (p *pair) close() (err error) {
	for i := range p.sides {
		if s := p.sides[i]; s != nil {
			if s.dev != nil {
				err = errors.Join(err, s.dev.Close())
			}
		} else {
			err = errors.Join(err, p.ports[i].Close())
		}
	}
	return err
}

// open makes one end. Who fails to make a device closes its port, so that close must not do it again.
func (p *pair) open(t *trial, i int) error {
	s := &side{}
	p.sides[i] = s
	var err error
	if s.dev, err = roce.New(p.ports[i], p.options()...); err != nil {
		return err
	}
	pd, err := s.dev.AllocPD()
	if err != nil {
		return err
	}
	if s.mr, err = pd.AllocMR(entries*t.size, roce.LocalWrite|roce.RemoteWrite); err != nil {
		return err
	}
	space := indirect.NewSpace(s.mr)
	space.Delivered = func(r *indirect.Request, b []byte) {
		p.arrived.Add(1)
		if first, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-stamp:]); first != last || first%entries != r.DBA/uint64(t.size) {
			err := fmt.Errorf("what arrived at %d has the bytes of transfers %d and %d", r.DBA, first, last)
			p.wrong.Store(&err)
		}
	}
	frp := 0.0
	if i == 1 {
		frp = t.frp
	}
	s.ep, err = indirect.New(s.dev, pd, indirect.Config{
		Host: space, Traditional: t.traditional, MaxTransfer: t.size, IndirectBuffer: indirect.DefaultSlots * t.size, Segment: segment,
		MaxConns: 1, Timeout: t.timeout, Patience: patience, Entries: entries, RC: roce.ConnectOptions{MTU: t.mtu},
		Faults: indirect.Faults{Seed: t.seed, FailedRegistration: frp}, Clock: p.clock, Rand: p.rand,
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

// measure lets time pass, each side on a thread and a CPU of its own.
func (p *pair) measure(ctx context.Context, t *trial, o *outcome) (err error) {
	var stop atomic.Bool
	served := make(chan error, 1)
	go func() { served <- onCPU(t.cpus[1], func() error { return p.sides[1].serve(&stop) }) }()
	if t.pings {
		end, perr := startPings(t.world.pair, t.pingEvery)
		if perr != nil {
			stop.Store(true)
			return errors.Join(perr, <-served)
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	start := time.Now()
	err = onCPU(t.cpus[0], func() error {
		s := p.sides[0]
		s.watch.look()
		return s.pour(t, o, func() int64 { return int64(time.Since(start)) }, s.spinner(ctx))
	})
	stop.Store(true)
	err = errors.Join(err, <-served)
	o.stolen = max(p.sides[0].watch.stolen, p.sides[1].watch.stolen)
	return err
}

// watch notices when its thread did not run.
type watch struct {
	last   time.Time
	stolen time.Duration
}

// gap is longer than any turn takes by itself.
const gap = 300 * time.Microsecond

func (w *watch) look() {
	now := time.Now()
	if d := now.Sub(w.last); d > gap && !w.last.IsZero() {
		w.stolen += d
	}
	w.last = now
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
		s.watch.look()
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

// pour makes the transfers: the next one begins when the data of the last one is out, and all are over when all have been released. now is in
// nanoseconds; turn lets things happen.
func (s *side) pour(t *trial, o *outcome, now func() int64, turn func() error) error {
	b, start := s.mr.Bytes(), now()
	r := run{side: s, o: o, now: now}
	for n := uint64(1); n <= uint64(t.transfers); n++ {
		off := int(n%entries) * t.size
		for r.busy[n%entries] { // its memory is that of a transfer that is not released
			if err := r.until(turn, &r.ended); err != nil {
				return err
			}
		}
		binary.LittleEndian.PutUint64(b[off:], n)
		binary.LittleEndian.PutUint64(b[off+t.size-stamp:], n)
		r.posted, r.busy[n%entries] = now(), true
		if err := s.conn.Post(&indirect.Transfer{Kind: indirect.Write, MR: s.mr, Off: off, Len: t.size, DBA: uint64(off), Cookie: n}); err != nil {
			return err
		}
		if err := r.until(turn, &r.sent); err != nil {
			return fmt.Errorf("transfer %d of %d: %w", n, t.transfers, err)
		}
	}
	for r.done < t.transfers {
		if err := r.until(turn, &r.ended); err != nil {
			return err
		}
	}
	o.total = time.Duration(now() - start)
	return nil
}

// run follows the transfers of a trial.
type run struct {
	*side
	o           *outcome
	now         func() int64
	posted      int64
	sent, ended bool // the last one's data; any one
	busy        [entries]bool
	done        int
	evs         [8]indirect.Event
}

// until lets things happen until what is true, and makes it false.
func (r *run) until(turn func() error, what *bool) error {
	for !*what {
		if err := r.look(); err != nil {
			return err
		}
		if !*what {
			if err := turn(); err != nil {
				return err
			}
		}
	}
	*what = false
	return nil
}

// look takes in events.
func (r *run) look() error {
	for _, ev := range r.evs[:r.ep.Poll(r.evs[:])] {
		switch {
		case ev.Kind == indirect.Down:
			return ev.Err
		case ev.Kind == indirect.Acked:
			r.o.waited += time.Duration(r.now() - r.posted)
		case ev.Kind == indirect.Sent:
			r.sent = true
		case ev.Status != indirect.StatusOK:
			return errors.Join(fmt.Errorf("%w: %v", indirect.ErrTransfer, ev.Status), r.conn.Err())
		default:
			r.done++
			r.ended, r.busy[ev.Cookie%entries] = true, false
		}
	}
	return nil
}

// lookEvery is how many turns pass between two looks at the outside world.
const lookEvery = 4096

// spinner is a turn in real time: nothing but a look at the outside world now and then.
func (s *side) spinner(ctx context.Context) func() error {
	turn := 0
	return func() error {
		s.watch.look()
		if turn++; turn%lookEvery == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
}
