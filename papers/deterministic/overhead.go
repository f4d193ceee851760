package deterministic

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// ends observes when a message begins and ends on the wire.
type ends struct {
	driver.Port
	first atomic.Int64 // when the first packet with data was sent since it was 0
	last  atomic.Int64 // when the last acknowledgment was received
}

// Unwrap returns the wrapped port.
func (e *ends) Unwrap() driver.Port { return e.Port }

// Send implements driver.Port.
func (e *ends) Send(bufs []driver.Buf) (int, error) {
	if e.first.Load() == 0 &&
		has(bufs, func(op bth.Opcode) bool { return op.Info().Op == bth.OpWrite }) {
		e.first.Store(now())
	}
	return e.Port.Send(bufs)
}

// Receive implements driver.Port.
func (e *ends) Receive(bufs []driver.Buf) int {
	n := e.Port.Receive(bufs)
	if n > 0 && has(bufs[:n], func(op bth.Opcode) bool { return op == bth.RCAck }) {
		e.last.Store(now())
	}
	return n
}

// has reports whether one of the frames has such an opcode.
func has(bufs []driver.Buf, is func(bth.Opcode) bool) bool {
	for i := range bufs {
		if h := frame.PeekBTH(bufs[i].B); len(h) > 0 && is(bth.Opcode(h[0])) {
			return true
		}
	}
	return false
}

// begun is when the process started.
var begun = time.Now()

// now returns the time in nanoseconds, at least 1.
func now() int64 { return int64(time.Since(begun)) + 1 }

// pair is two devices in real time with a layer each.
type pair struct {
	bed   *testbed.Testbed
	wire  *ends
	layer [2]*flow.Layer
	conns []interface{ Close() error }
	port  uint16
}

func (b *bench) newPair() (p *pair, err error) {
	p = &pair{port: firstPort}
	defer func() {
		if err != nil {
			err = errors.Join(err, p.close())
		}
	}()
	if p.bed, err = testbed.New(testbed.Config{Veth: b.Link == kit.Veth, Wrap: p.wrap,
		Options: []roce.Option{roce.WithProgress(roce.Manual)}}); err != nil {
		return p, err
	}
	for i, dev := range p.bed.Dev {
		if p.layer[i], err = flow.NewLayer(dev, flow.LayerConfig{}); err != nil {
			return p, err
		}
	}
	return p, nil
}

// wrap observes the port of the sending device.
func (p *pair) wrap(side int, port driver.Port) driver.Port {
	if side == 0 {
		p.wire = &ends{Port: port}
		return p.wire
	}
	return port
}

// drive drives the devices until the returned function is called.
func (p *pair) drive() (stop func()) {
	var wg sync.WaitGroup
	var stopped atomic.Bool
	for _, dev := range p.bed.Dev {
		wg.Go(func() {
			for !stopped.Load() {
				if dev.Progress() == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	return func() {
		stopped.Store(true)
		wg.Wait()
	}
}

// connect connects a sender to a receiver with one slot.
func (p *pair) connect(ctx context.Context, name string, size int) (s *flow.Sender,
	r *flow.Receiver, err error) {
	defer p.drive()()
	p.port++
	l, err := p.layer[1].Listen(p.bed.Addr(1, p.port),
		flow.ReceiverConfig{Channel: flow.ChannelConfig{Name: name, Size: size, Slots: 1}})
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	done := make(chan error, 1)
	go func() {
		var err error
		r, err = l.Accept(ctx)
		done <- err
	}()
	s, err = p.layer[0].Dial(ctx, p.bed.Addr(1, p.port), flow.SenderConfig{Name: name})
	if err != nil {
		return nil, nil, err
	}
	p.conns = append(p.conns, s)
	if err := <-done; err != nil {
		return nil, nil, err
	}
	p.conns = append(p.conns, r)
	return s, r, nil
}

func (p *pair) close() error {
	if p.bed == nil {
		return nil
	}
	var errs []error
	stop := p.drive()
	for _, c := range p.conns {
		errs = append(errs, c.Close())
	}
	for _, l := range p.layer {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	stop()
	return errors.Join(append(errs, p.bed.Close())...)
}

// drain releases what a receiver gets until ctx ends.
func drain(ctx context.Context, r *flow.Receiver) {
	for {
		m, err := r.Receive(ctx)
		if err != nil {
			return
		}
		m.Release()
	}
}

// taken is how long messages took, in seconds, one value of each per message.
type taken struct {
	total []float64
	host  []float64 // without the time from the first packet to the last acknowledgment
}

// measure sends a message with f and notes how long it took.
func (t *taken) measure(w *ends, f func() error) error {
	w.first.Store(0)
	start := now()
	if err := f(); err != nil {
		return err
	}
	end := now()
	t.total = append(t.total, float64(end-start)/1e9)
	t.host = append(t.host, float64(end-start-(w.last.Load()-w.first.Load()))/1e9)
	return nil
}

// overheads sends messages of size bytes with the scheduler and without it, alternately.
func (b *bench) overheads(ctx context.Context, size, count int) (with, without taken, err error) {
	ctx, cancel := context.WithCancel(ctx) // ends drain
	defer cancel()
	p, err := b.newPair()
	if err != nil {
		return with, without, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var senders [2]*flow.Sender
	for i := range senders {
		s, r, err := p.connect(ctx, []string{"scheduled", "direct"}[i], size)
		if err != nil {
			return with, without, err
		}
		senders[i] = s
		go drain(ctx, r)
	}
	scheduled, sched, err := p.scheduled(ctx, senders[0], size)
	if err != nil {
		return with, without, err
	}
	defer func() { err = errors.Join(sched.Close(), err) }()
	mr, err := p.layer[0].Alloc(size)
	if err != nil {
		return with, without, err
	}
	defer func() { err = errors.Join(mr.Close(), err) }()
	direct := func() error { return senders[1].Send(ctx, mr, 0, size) }
	const warmup = 5
	for i := range warmup + count {
		if i == warmup {
			with, without = taken{}, taken{}
		}
		if err := with.measure(p.wire, scheduled); err != nil {
			return with, without, err
		}
		if err := without.measure(p.wire, direct); err != nil {
			return with, without, err
		}
	}
	return with, without, nil
}

// scheduled returns a function that sends a message through a scheduler.
func (p *pair) scheduled(ctx context.Context, to *flow.Sender, size int) (send func() error,
	s *flow.Scheduler, err error) {
	s, err = flow.NewScheduler(flow.SchedulerConfig{Layers: p.layer[:1]})
	if err != nil {
		return nil, nil, err
	}
	ch, err := p.layer[0].NewChannel(flow.ChannelConfig{Name: "overhead", Size: size, Slots: 2})
	if err != nil {
		return nil, s, err
	}
	done, err := s.Event("done")
	if err != nil {
		return nil, s, err
	}
	arrived := make(chan struct{}, 1)
	if _, err = s.Task(flow.TaskConfig{Name: "done", Inputs: []flow.Input{{Source: done}},
		Run: func(*flow.Run) { arrived <- struct{}{} }}); err != nil {
		return nil, s, err
	}
	if _, err := s.SendTask(flow.SendConfig{Name: "send", Channel: ch, To: to,
		Done: done}); err != nil {
		return nil, s, err
	}
	return func() error {
		m, err := ch.Reserve()
		if err != nil {
			return err
		}
		if err := ch.Push(m, size); err != nil {
			return err
		}
		select {
		case <-arrived:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("a message of %d bytes: %w", size, context.Cause(ctx))
		}
	}, s, s.Start()
}
