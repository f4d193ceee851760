package netsim

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	tap   *tap    // port 0
	nodes []*node // by port
	hosts []host  // by port - 1
	alive []bool  // hosts that have started
	start int64   // when the first sender may begin

	samples []Sample
	last    []uint64 // bytes at the last sample, by flow
}

// node is what uses a port. It is only called when it has something to do.
type node struct {
	dev    *roce.Device // nil for TCP
	host   host         // nil for the receiver
	tap    *tap         // of the receiver
	next   int64        // when its next timer expires
	active bool         // it may have something to do now
}

// never is the value of node.next without a timer.
const never = math.MaxInt64

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
		Virtual: true, NoTrace: true,
		Star: true, Queue: frames})
	if err != nil {
		return err
	}
	if w.Bottleneck != nil {
		if err := w.link.SetBottleneck(0, *w.Bottleneck); err != nil {
			return err
		}
	}
	w.tap = newTap(w.link)
	if err := w.openNode(w.tap, 0); err != nil {
		return err
	}
	w.nodes[0].tap = w.tap
	for i := range w.Senders {
		if err := w.addSender(i); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// openNode opens a device on a port. Its random numbers come from a stream of the seed.
func (w *world) openNode(p driver.Port, port int) error {
	r := rand.New(rand.NewPCG(w.Seed, uint64(port)))
	o := append([]roce.Option{roce.WithExpert(roce.Expert{Clock: w.link.Now, Rand: r.Uint64})},
		w.Options...)
	d, err := roce.New(p, o...)
	if err != nil {
		return err
	}
	w.nodes = append(w.nodes, &node{dev: d, active: true})
	return nil
}

func (w *world) addSender(i int) (err error) {
	s, port := &w.Senders[i], i+1
	for _, d := range [][2]int{{0, port}, {port, 0}} {
		if err := w.link.SetPlan(d[0], d[1], s.Plan); err != nil {
			return err
		}
	}
	var h host
	if s.TCP != nil {
		w.nodes = append(w.nodes, &node{})
		h = newTCPHost(s.TCP, w.link, port, w.tap)
	} else {
		if err := w.openNode(w.link.Port(port), port); err != nil {
			return err
		}
		if h, err = newQPHost(s, w.nodes[port].dev, w.nodes[0].dev, w.Connect); err != nil {
			return err
		}
	}
	w.nodes[port].host = h
	w.hosts, w.alive = append(w.hosts, h), append(w.alive, false)
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
		w.alive[i], w.nodes[0].active, w.nodes[i+1].active = true, true, true
		if err := h.start(); err != nil {
			return fmt.Errorf("sender %d: %w", i, err)
		}
	}
	return nil
}

// progress does everything that is due now.
func (w *world) progress() error {
	for again := true; again; {
		again = false
		for port, n := range w.nodes {
			if !n.active && n.next > w.link.Now() && !w.arrived(port) {
				continue
			}
			work, err := w.step(n)
			if err != nil {
				return fmt.Errorf("sender %d: %w", port-1, err)
			}
			if n.active = work; work {
				again = true
				continue
			}
			n.next = n.timer()
		}
	}
	return nil
}

// arrived reports whether a port has a frame to receive.
func (w *world) arrived(port int) bool {
	at, ok := w.link.NextEventAt(port)
	return ok && at <= w.link.Now()
}

// step lets a node do something, and reports whether it did.
func (w *world) step(n *node) (work bool, err error) {
	if n.dev != nil {
		work = n.dev.Progress() > 0
	}
	if n.tap != nil {
		n.tap.progress()
		return work, nil
	}
	done, err := n.host.progress()
	if done > 0 {
		work = true
		w.nodes[0].active = true // it may have got a receive
	}
	return work, err
}

// timer returns when the node's next timer expires.
func (n *node) timer() int64 {
	next := int64(never)
	if n.dev != nil {
		if at, ok := n.dev.NextTimeout(); ok {
			next = at
		}
	}
	timers := interface{ nextTimeout() (int64, bool) }(n.host)
	if n.tap != nil {
		timers = n.tap
	}
	if at, ok := timers.nextTimeout(); ok {
		next = min(next, at)
	}
	return next
}

// advance moves the clock to the next event, at most to t.
func (w *world) advance(t int64) {
	next := t
	if at, ok := w.link.NextEvent(); ok {
		next = min(next, at)
	}
	for _, n := range w.nodes {
		next = min(next, n.next)
	}
	for i := range w.hosts {
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
	for _, h := range w.hosts {
		s.Windows = append(s.Windows, h.windows()...)
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
	for _, n := range w.nodes[1:] {
		if n.dev == nil {
			continue
		}
		c := n.dev.Counters()
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
	for _, n := range w.nodes {
		if n.dev != nil {
			errs = append(errs, n.dev.Close())
		}
	}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	return errors.Join(errs...)
}
