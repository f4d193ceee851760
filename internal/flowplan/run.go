package flowplan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// LinkKind is what Run sends over.
type LinkKind string

// The kinds of links.
const (
	Virtual LinkKind = "virtual" // a link in memory in virtual time, with the plan's rate and delay
	Memory  LinkKind = "memory"  // a link in memory in real time
	Veth    LinkKind = "veth"    // AF_XDP on a veth pair
)

// slots is the capacity of channels, in messages.
const slots = 4

// runner sends the messages of a plan.
type runner struct {
	plan  *Plan
	bed   *testbed.Testbed
	layer [2]*flow.Layer
	sched *flow.Scheduler
	conns []interface{ Close() error }
	tasks []*flow.Task
}

// Run sends the messages of p for some time between two devices, and returns what it observed.
func Run(ctx context.Context, p *Plan, kind LinkKind, length time.Duration) ([]Observed, error) {
	bounds, err := flow.Bound(p.Link, p.Model())
	if err != nil {
		return nil, err
	}
	r := &runner{plan: p}
	if err := r.open(ctx, kind); err != nil {
		return nil, errors.Join(err, r.close())
	}
	err = r.run(ctx, length)
	list := r.observed(bounds)
	return list, errors.Join(err, r.close())
}

func (r *runner) open(ctx context.Context, kind LinkKind) (err error) {
	c := testbed.Config{Veth: kind == Veth, Virtual: kind == Virtual}
	if kind == Virtual {
		c.Plan = loopback.Plan{Bandwidth: r.plan.Link.Rate, Delay: r.plan.Delay}
	}
	if r.bed, err = testbed.New(c); err != nil {
		return err
	}
	lc := flow.LayerConfig{Completions: max(flow.DefaultCompletions, 128*len(r.plan.Flows))}
	sc := flow.SchedulerConfig{InFlight: r.plan.Link.InFlight}
	if kind == Virtual {
		lc.Clock, lc.Wait, sc.Clock = r.bed.Link.Now, r.bed.Sim.Wait, r.bed.Link.Now
	}
	for i := range r.layer {
		if r.layer[i], err = flow.NewLayer(r.bed.Dev[i], lc); err != nil {
			return err
		}
	}
	sc.Layers = r.layer[:1]
	if r.sched, err = flow.NewScheduler(sc); err != nil {
		return err
	}
	if r.bed.Sim != nil {
		r.bed.Sim.Add(r.sched, poller{r.layer[1]})
	}
	for i := range r.plan.Flows {
		if err := r.add(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// poller receives messages in virtual time.
type poller struct{ *flow.Layer }

// Progress implements loopback.Node.
func (p poller) Progress() int { return p.Poll() }

// NextTimeout implements loopback.Node.
func (poller) NextTimeout() (int64, bool) { return 0, false }

// firstPort is the RDMA port of the first flow.
const firstPort = 7600

// add connects a flow and adds its tasks.
func (r *runner) add(ctx context.Context, i int) error {
	f := &r.plan.Flows[i]
	from, to, err := r.connect(ctx, f, r.bed.Addr(1, firstPort+uint16(i)))
	if err != nil {
		return fmt.Errorf("connect flow %q: %w", f.Name, err)
	}
	r.conns = append(r.conns, from, to)
	ch, err := r.layer[0].NewChannel(flow.ChannelConfig{Name: f.Name, Size: f.Size,
		Slots: max(slots, min(flow.MaxSlots, newArrivals(f).burst+1))})
	if err != nil {
		return err
	}
	c := flow.SendConfig{Name: f.Name, Priority: f.Priority, Channel: ch, To: from, Split: f.Split,
		Part: f.Part, MaxAge: f.MaxAge, Deadline: f.EffectiveDeadline(), OnLate: f.OnLate,
		Retries: f.Retries}
	if c.Deadline == 0 {
		c.OnLate = flow.Warn
	}
	task, err := r.sched.SendTask(c)
	if err != nil {
		return err
	}
	r.tasks = append(r.tasks, task)
	return r.produce(f, ch)
}

// produce adds the task that writes the messages of a flow.
func (r *runner) produce(f *Flow, ch *flow.Channel) error {
	a := newArrivals(f)
	tick, err := r.sched.Timer(f.Name, time.Duration(a.every), f.Phase)
	if err != nil {
		return err
	}
	burst := a.burst
	_, err = r.sched.Task(flow.TaskConfig{Name: "write " + f.Name, Priority: f.Priority,
		Inputs: []flow.Input{{Source: tick, Synchron: true}}, Writes: []*flow.Channel{ch},
		Run: func(*flow.Run) {
			for range burst {
				if m, err := ch.Reserve(); err == nil {
					_ = ch.Push(m, f.Size)
				}
			}
			burst = 1
		}})
	return err
}

// connect connects a sender of layer 0 to a receiver of layer 1.
func (r *runner) connect(ctx context.Context, f *Flow, addr netip.AddrPort) (from *flow.Sender,
	to *flow.Receiver, err error) {
	l, err := r.bed.Dev[1].Listen(addr, roce.ListenOptions{})
	if err != nil {
		return nil, nil, err
	}
	var errs [2]error
	accept := func() {
		q, err := l.Accept(ctx)
		if err != nil {
			errs[1] = err
			return
		}
		to, errs[1] = r.layer[1].AcceptRequest(ctx, q, flow.ReceiverConfig{
			Channel: flow.ChannelConfig{Name: f.Name, Size: f.Size, Slots: slots}})
	}
	dial := func() {
		from, errs[0] = r.layer[0].Dial(ctx, addr, flow.SenderConfig{Name: f.Name, Class: f.Class()})
	}
	if r.bed.Sim != nil {
		r.bed.Sim.Go(accept)
		r.bed.Sim.Go(dial)
		err = r.bed.Sim.Run(time.Minute)
	} else {
		done := make(chan struct{})
		go func() {
			defer close(done)
			accept()
		}()
		if dial(); errs[0] != nil {
			err = l.Close()
		}
		<-done
	}
	err = errors.Join(err, errs[0], errs[1], l.Close())
	if err != nil {
		if from != nil {
			err = errors.Join(err, from.Close())
		}
		if to != nil {
			err = errors.Join(err, to.Close())
		}
	}
	return from, to, err
}

// run lets the schedule run.
func (r *runner) run(ctx context.Context, length time.Duration) error {
	if err := r.sched.Start(); err != nil {
		return err
	}
	if r.bed.Sim != nil {
		r.bed.Sim.Go(func() { _ = r.bed.Sim.Sleep(length) })
		return r.bed.Sim.Run(2 * length)
	}
	t := time.NewTimer(length)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *runner) close() error {
	var errs []error
	if r.sched != nil {
		errs = append(errs, r.sched.Close())
	}
	for _, c := range r.conns {
		errs = append(errs, c.Close())
	}
	for _, l := range r.layer {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	if r.bed != nil {
		errs = append(errs, r.bed.Close())
	}
	return errors.Join(errs...)
}
