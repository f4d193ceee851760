package netsim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// world is a Scenario that runs. Port 0 of the link is the receiver.
type world struct {
	*Scenario
	ctx   context.Context
	link  *loopback.Link
	tap   *tap           // port 0
	devs  []*roce.Device // the receiver's, then those of the senders that have one
	hosts []host
	alive []bool // hosts that have started
	start int64  // when the first sender may begin

	samples []Sample
	last    []uint64 // bytes at the last sample, by flow
}

// Run runs a Scenario. It returns an error if an operation fails, or when ctx ends.
func Run(ctx context.Context, s *Scenario) (r Result, err error) {
	if err := s.check(); err != nil {
		return r, err
	}
	w := &world{Scenario: s, ctx: ctx}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.open(); err != nil {
		return r, err
	}
	w.start = w.link.Now()
	begin := w.start + int64(s.Warmup)
	if err := w.until(begin); err != nil {
		return r, err
	}
	before := w.bytes()
	if err := w.until(begin + int64(s.Time)); err != nil {
		return r, err
	}
	return w.result(before), nil
}

func (w *world) open() (err error) {
	frames := w.Frames
	if frames == 0 {
		frames = DefaultFrames
	}
	w.link, err = loopback.NewLink(loopback.Config{Ports: 1 + len(w.Senders), Seed: w.Seed,
		Virtual: true, Star: true, Queue: frames})
	if err != nil {
		return err
	}
	if w.Bottleneck != nil {
		if err := w.link.SetBottleneck(0, *w.Bottleneck); err != nil {
			return err
		}
	}
	w.tap = newTap(w.link)
	if _, err := w.openDevice(w.tap, 0); err != nil {
		return err
	}
	for i := range w.Senders {
		if err := w.addSender(i); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// openDevice opens a device whose random numbers come from a stream of the seed.
func (w *world) openDevice(p driver.Port, stream int) (*roce.Device, error) {
	r := rand.New(rand.NewPCG(w.Seed, uint64(stream)))
	o := append([]roce.Option{roce.WithExpert(roce.Expert{Clock: w.link.Now, Rand: r.Uint64})},
		w.Options...)
	d, err := roce.New(p, o...)
	if err != nil {
		return nil, err
	}
	w.devs = append(w.devs, d)
	return d, nil
}

func (w *world) addSender(i int) error {
	s := &w.Senders[i]
	for _, d := range [][2]int{{0, i + 1}, {i + 1, 0}} {
		if err := w.link.SetPlan(d[0], d[1], s.Plan); err != nil {
			return err
		}
	}
	w.alive = append(w.alive, false)
	if s.TCP != nil {
		w.hosts = append(w.hosts, newTCPHost(s.TCP, w.link, i+1, w.tap))
		return nil
	}
	d, err := w.openDevice(w.link.Port(i+1), i+1)
	if err != nil {
		return err
	}
	h, err := newQPHost(s, d, w.devs[0], w.Connect)
	if err != nil {
		return err
	}
	w.hosts = append(w.hosts, h)
	return nil
}

// until runs the network to time t.
func (w *world) until(t int64) error {
	const steps = 1 << 10 // between two looks at the context
	for n := 0; w.link.Now() < t; n++ {
		if n%steps == 0 && w.ctx.Err() != nil {
			return context.Cause(w.ctx)
		}
		if err := w.startHosts(); err != nil {
			return err
		}
		if err := w.progress(); err != nil {
			return err
		}
		w.advance(t)
		w.sample()
	}
	return nil
}

func (w *world) startHosts() error {
	for i, h := range w.hosts {
		if w.alive[i] || w.link.Now() < w.start+int64(w.Senders[i].Start) {
			continue
		}
		w.alive[i] = true
		if err := h.start(); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// progress does everything that is due now.
func (w *world) progress() error {
	for busy := true; busy; {
		busy = false
		for _, d := range w.devs {
			busy = d.Progress() > 0 || busy
		}
		w.tap.progress()
		for i, h := range w.hosts {
			n, err := h.progress()
			if err != nil {
				return fmt.Errorf("sender %d: %w", i, err)
			}
			busy = busy || n > 0
		}
	}
	return nil
}

// advance moves the clock to the next event, at most to t.
func (w *world) advance(t int64) {
	next := t
	if at, ok := w.link.NextEvent(); ok {
		next = min(next, at)
	}
	for _, d := range w.devs {
		if at, ok := d.NextTimeout(); ok {
			next = min(next, at)
		}
	}
	if at, ok := w.tap.nextTimeout(); ok {
		next = min(next, at)
	}
	for i, h := range w.hosts {
		if at, ok := h.nextTimeout(); ok {
			next = min(next, at)
		}
		if !w.alive[i] {
			next = min(next, w.start+int64(w.Senders[i].Start))
		}
	}
	if w.Sample > 0 {
		next = min(next, w.nextSample())
	}
	w.link.Advance(time.Duration(max(1, next-w.link.Now())))
}

// nextSample returns when the current interval ends.
func (w *world) nextSample() int64 { return w.start + int64(len(w.samples)+1)*int64(w.Sample) }

// sample ends the interval if its time has come.
func (w *world) sample() {
	if w.Sample == 0 || w.link.Now() < w.nextSample() {
		return
	}
	s := Sample{At: time.Duration(w.link.Now() - w.start), Queue: w.link.Bottleneck(0).Waiting}
	now := w.bytes()
	for i, n := range now {
		before := uint64(0)
		if w.last != nil {
			before = w.last[i]
		}
		s.Bits = append(s.Bits, float64(n-before)*8/w.Sample.Seconds())
	}
	w.samples, w.last = append(w.samples, s), now
}

// bytes returns the completed bytes since the start, by flow.
func (w *world) bytes() (list []uint64) {
	for _, h := range w.hosts {
		list = append(list, h.bytes()...)
	}
	return list
}

func (w *world) result(before []uint64) (r Result) {
	bytes := w.bytes()
	for i, h := range w.hosts {
		for range h.bytes() {
			n := bytes[len(r.Flows)] - before[len(r.Flows)]
			bits := float64(n) * 8 / w.Time.Seconds()
			r.Flows = append(r.Flows, Flow{Sender: i, Bits: bits})
			r.Bits += bits
		}
	}
	for _, d := range w.devs[1:] {
		c := d.Counters()
		r.Packets += c.SentPkts
		r.Retransmits += c.Retransmits
		r.Timeouts += c.AckTimeouts
		r.Probes += c.Probes
	}
	r.Bottleneck, r.Samples = w.link.Bottleneck(0), w.samples
	return r
}

func (w *world) close() error {
	var errs []error
	for _, d := range w.devs {
		errs = append(errs, d.Close())
	}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	return errors.Join(errs...)
}
