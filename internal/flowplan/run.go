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

// DefaultPort is the RDMA port of the first flow of a plan. The others follow.
const DefaultPort = 7600

// slots is the capacity of channels, in messages.
const slots = 4

// runner sends the messages of a plan.
type runner struct {
	plan  *Plan
	bed   *testbed.Testbed // nil for a peer on another host
	layer [2]*flow.Layer   // the second one receives; nil for a peer on another host
	sched *flow.Scheduler
	conns []interface{ Close() error }
	tasks []*flow.Task
}

// Run sends the messages of p for some time between two devices, and returns what it observed.
func Run(ctx context.Context, p *Plan, kind LinkKind, length time.Duration) ([]Observed, error) {
	c := testbed.Config{Veth: kind == Veth, Virtual: kind == Virtual}
	if kind == Virtual {
		c.Plan = loopback.Plan{Bandwidth: p.Link.Rate, Delay: p.Delay}
	}
	bed, err := testbed.New(c)
	if err != nil {
		return nil, err
	}
	r := &runner{plan: p, bed: bed}
	return r.do(ctx, length, bed.Dev[:], func(f *Flow, port uint16) (*flow.Sender, error) {
		return r.connect(ctx, f, bed.Addr(1, port))
	})
}

// Send is like Run, but sends from dev to Serve on another host. Port is that of the first flow.
func Send(ctx context.Context, p *Plan, dev *roce.Device, peer netip.Addr, port uint16,
	length time.Duration) ([]Observed, error) {
	r := &runner{plan: p}
	return r.do(ctx, length, []*roce.Device{dev}, func(f *Flow, n uint16) (*flow.Sender, error) {
		return r.layer[0].Dial(ctx, netip.AddrPortFrom(peer, port+n-DefaultPort), p.sender(f))
	})
}

// do sends the messages on devs, the first of which sends. dial connects a flow.
func (r *runner) do(ctx context.Context, length time.Duration, devs []*roce.Device,
	dial func(f *Flow, port uint16) (*flow.Sender, error)) (list []Observed, err error) {
	defer func() { err = errors.Join(err, r.close()) }()
	bounds, err := flow.Bound(r.plan.Link, r.plan.Model())
	if err != nil {
		return nil, err
	}
	if err := r.open(devs); err != nil {
		return nil, err
	}
	for i := range r.plan.Flows {
		f := &r.plan.Flows[i]
		from, err := dial(f, DefaultPort+uint16(i))
		if err != nil {
			return nil, fmt.Errorf("connect flow %q: %w", f.Name, err)
		}
		r.conns = append(r.conns, from)
		if err := r.add(f, from); err != nil {
			return nil, err
		}
	}
	err = r.run(ctx, length)
	return r.observed(bounds), err
}

// sender returns the configuration of the sender of f.
func (p *Plan) sender(f *Flow) flow.SenderConfig {
	return flow.SenderConfig{Name: f.Name, Class: f.Class(),
		Connect: roce.ConnectOptions{MTU: roce.MTU(p.Link.MTU)}}
}

// sim returns the simulation of virtual time, or nil.
func (r *runner) sim() *loopback.Sim {
	if r.bed == nil {
		return nil
	}
	return r.bed.Sim
}

// open creates the layers and the scheduler.
func (r *runner) open(devs []*roce.Device) (err error) {
	lc := layerConfig(r.plan)
	sc := flow.SchedulerConfig{InFlight: r.plan.Link.InFlight}
	if sim := r.sim(); sim != nil {
		lc.Clock, lc.Wait, sc.Clock = r.bed.Link.Now, sim.Wait, r.bed.Link.Now
	}
	for i, dev := range devs {
		if r.layer[i], err = flow.NewLayer(dev, lc); err != nil {
			return err
		}
	}
	sc.Layers = r.layer[:1]
	if r.sched, err = flow.NewScheduler(sc); err != nil {
		return err
	}
	if sim := r.sim(); sim != nil {
		sim.Add(r.sched, poller{r.layer[1]})
	}
	return nil
}

// layerConfig returns a configuration with enough completions for the flows.
func layerConfig(p *Plan) flow.LayerConfig {
	return flow.LayerConfig{Completions: max(flow.DefaultCompletions, 128*len(p.Flows))}
}

// poller receives messages in virtual time.
type poller struct{ *flow.Layer }

// Progress implements loopback.Node.
func (p poller) Progress() int { return p.Poll() }

// NextTimeout implements loopback.Node.
func (poller) NextTimeout() (int64, bool) { return 0, false }

// add adds the tasks of a flow.
func (r *runner) add(f *Flow, to *flow.Sender) error {
	ch, err := r.layer[0].NewChannel(flow.ChannelConfig{Name: f.Name, Size: f.Size,
		Slots: max(slots, min(flow.MaxSlots, newArrivals(f).burst+1))})
	if err != nil {
		return err
	}
	c := flow.SendConfig{Name: f.Name, Priority: f.Priority, Channel: ch, To: to, Split: f.Split,
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
func (r *runner) connect(ctx context.Context, f *Flow, addr netip.AddrPort) (*flow.Sender, error) {
	l, err := r.bed.Dev[1].Listen(addr, roce.ListenOptions{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var from *flow.Sender
	var errs [2]error
	accept := func() {
		q, err := l.Accept(ctx)
		if err != nil {
			errs[1] = err
			return
		}
		to, err := r.layer[1].AcceptRequest(ctx, q, flow.ReceiverConfig{
			Channel: flow.ChannelConfig{Name: f.Name, Size: f.Size, Slots: slots}})
		if errs[1] = err; err == nil {
			r.conns = append(r.conns, to)
		}
	}
	dial := func() {
		from, errs[0] = r.layer[0].Dial(ctx, addr,
			r.plan.sender(f))
		if errs[0] != nil {
			cancel()
		}
	}
	if sim := r.sim(); sim != nil {
		sim.Go(accept)
		sim.Go(dial)
		err = sim.Run(time.Minute)
	} else {
		done := make(chan struct{})
		go func() {
			defer close(done)
			accept()
		}()
		dial()
		<-done
	}
	err = errors.Join(err, errs[0], errs[1], l.Close())
	if err != nil && from != nil {
		r.conns = append(r.conns, from)
	}
	return from, err
}

// run lets the schedule run.
func (r *runner) run(ctx context.Context, length time.Duration) error {
	if err := r.sched.Start(); err != nil {
		return err
	}
	if sim := r.sim(); sim != nil {
		sim.Go(func() { _ = sim.Sleep(length) })
		return sim.Run(2 * length)
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
