package flowplan

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
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

// ctxCheck is the virtual time after which Run checks whether its context is done.
const ctxCheck = time.Millisecond

// slots is the capacity of channels, in messages.
const slots = 4

// runner sends the messages of a plan.
type runner struct {
	plan  *Plan
	bed   *testbed.Testbed // nil for a peer on another host
	from  []*flow.Layer    // by flow if classes order the messages, otherwise one for all
	to    *flow.Layer      // receives; nil for a peer on another host
	sched *flow.Scheduler
	conns []interface{ Close() error }
	tasks []*flow.Task       // by flow
	idle  *endpoint.Endpoint // nil without classes
	graph
}

// Run sends the messages of p for some time between two devices, and returns what it observed.
func Run(ctx context.Context, p *Plan, kind LinkKind, length time.Duration) ([]Observed, error) {
	c := testbed.Config{Veth: kind == Veth, Virtual: kind == Virtual}
	if kind == Veth {
		// The veth pair has no rate of its own, so classes need that of the plan.
		c.Options = p.DeviceOptions()
	} else {
		c.Rate, c.Plan.Delay, c.Options = p.Link.Rate, p.Delay, p.deviceOptions()
	}
	bed, err := testbed.New(c)
	if err != nil {
		return nil, err
	}
	r := &runner{plan: p, bed: bed}
	return r.do(ctx, length, bed.Dev[:], func(i int, port uint16) (*flow.Sender, error) {
		return r.connect(ctx, i, bed.Addr(1, port))
	})
}

// Send is like Run, but sends from dev to Serve on another host. Port is that of the first flow.
func Send(ctx context.Context, p *Plan, dev *roce.Device, peer netip.Addr, port uint16,
	length time.Duration) ([]Observed, error) {
	r := &runner{plan: p}
	return r.do(ctx, length, []*roce.Device{dev}, func(i int, n uint16) (*flow.Sender, error) {
		s, err := r.layer(i).Dial(ctx, netip.AddrPortFrom(peer, port+n-DefaultPort),
			p.sender(&p.Flows[i]))
		var rejected *roce.RejectError
		if errors.Is(err, roce.ErrNoAnswer) ||
			errors.As(err, &rejected) && rejected.Reason == roce.RejectNoListener {
			err = fmt.Errorf("%w: start 'gorxe flow serve' there first, with the same flows and port",
				err)
		}
		return s, err
	})
}

// do sends the messages on devs, the first of which sends. dial connects a flow.
func (r *runner) do(ctx context.Context, length time.Duration, devs []*roce.Device,
	dial func(i int, port uint16) (*flow.Sender, error)) (list []Observed, err error) {
	defer func() { err = errors.Join(err, r.close()) }()
	bounds, err := flow.Bound(r.plan.Link, r.plan.Model())
	if err != nil {
		return nil, err
	}
	if err := r.open(devs); err != nil {
		return nil, err
	}
	if err := r.addGraph(); err != nil {
		return nil, err
	}
	for i := range r.plan.Flows {
		from, err := dial(i, DefaultPort+uint16(i))
		if err != nil {
			return nil, fmt.Errorf("connect flow %q: %w", r.plan.Flows[i].Name, err)
		}
		r.conns = append(r.conns, from)
		if err := r.add(i, from); err != nil {
			return nil, err
		}
	}
	err = r.run(ctx, length)
	return r.observed(bounds), err
}

// sender returns the configuration of the sender of f.
func (p *Plan) sender(f *Flow) flow.SenderConfig {
	return flow.SenderConfig{Name: f.Name, Class: f.Class,
		Connect: roce.ConnectOptions{MTU: roce.MTU(p.Link.MTU)}}
}

// sim returns the simulation of virtual time, or nil.
func (r *runner) sim() *loopback.Sim {
	if r.bed == nil {
		return nil
	}
	return r.bed.Sim
}

// layer returns the layer that sends flow i.
func (r *runner) layer(i int) *flow.Layer { return r.from[min(i, len(r.from)-1)] }

// open creates the layers and the scheduler. A scheduler sends one message at a time on each layer.
// If classes order the messages, each flow has a layer, so that all messages are posted at once.
func (r *runner) open(devs []*roce.Device) (err error) {
	lc := layerConfig(r.plan)
	sc := flow.SchedulerConfig{InFlight: r.plan.Link.InFlight, Workers: r.workers(),
		Trace: r.observe}
	if sim := r.sim(); sim != nil {
		lc.Clock, lc.Wait, sc.Clock = r.bed.Link.Now, sim.Wait, r.bed.Link.Now
	}
	if len(devs) > 1 {
		if r.to, err = flow.NewLayer(devs[1], lc); err != nil {
			return err
		}
	}
	senders := 1
	if r.plan.Link.Points {
		senders, lc.Completions = len(r.plan.Flows), 0
		r.idle, err = endpoint.New(devs[0],
			endpoint.Config{QP: roce.QPConfig{Class: r.plan.idleClass()}})
		if err != nil {
			return err
		}
	}
	for range senders {
		l, err := flow.NewLayer(devs[0], lc)
		if err != nil {
			return err
		}
		r.from = append(r.from, l)
	}
	sc.Layers = r.from
	if r.sched, err = flow.NewScheduler(sc); err != nil {
		return err
	}
	if sim := r.sim(); sim != nil {
		sim.Add(r.sched, poller{r.to}, &r.graph)
	}
	return nil
}

func layerConfig(p *Plan) flow.LayerConfig {
	return flow.LayerConfig{Completions: max(flow.DefaultCompletions, 128*len(p.Flows))}
}

// poller receives messages in virtual time.
type poller struct{ *flow.Layer }

// Progress implements loopback.Node.
func (p poller) Progress() int { return p.Poll() }

// NextTimeout implements loopback.Node.
func (poller) NextTimeout() (int64, bool) { return 0, false }

// add adds the tasks of flow i.
func (r *runner) add(i int, to *flow.Sender) error {
	f := &r.plan.Flows[i]
	ch, err := r.layer(i).NewChannel(flow.ChannelConfig{Name: f.Name, Size: f.Size,
		Slots: max(slots, min(flow.MaxSlots, newArrivals(f).burst+1))})
	if err != nil {
		return err
	}
	c := flow.SendConfig{Name: f.Name, Priority: f.Priority, Channel: ch, To: to, Split: f.Split,
		Part: f.Part, MaxAge: f.MaxAge, Deadline: f.EffectiveDeadline(), OnLate: f.OnLate,
		Retries: f.Retries, Done: r.end(f.Name)}
	if r.plan.Link.Points {
		c.Part = 0 // the engine has the preemption points
	}
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
	inputs, err := r.inputs(f.After)
	if err != nil {
		return err
	}
	if len(inputs) == 0 {
		tick, err := r.sched.Timer(f.Name, time.Duration(a.every), f.Phase)
		if err != nil {
			return err
		}
		inputs = []flow.Input{{Source: tick, Synchron: true}}
	}
	burst := a.burst
	_, err = r.sched.Task(flow.TaskConfig{Name: writer(f), Priority: f.Priority,
		Inputs: inputs, Writes: []*flow.Channel{ch},
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

// connect connects the sender of flow i to a receiver.
func (r *runner) connect(ctx context.Context, i int, addr netip.AddrPort) (*flow.Sender, error) {
	f := &r.plan.Flows[i]
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
		to, err := r.to.AcceptRequest(ctx, q, flow.ReceiverConfig{
			Channel: flow.ChannelConfig{Name: f.Name, Size: f.Size, Slots: slots}})
		if errs[1] = err; err == nil {
			r.conns = append(r.conns, to)
		}
	}
	dial := func() {
		from, errs[0] = r.layer(i).Dial(ctx, addr, r.plan.sender(f))
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
		sim.Go(func() {
			for left := length; left > 0 && ctx.Err() == nil; left -= ctxCheck {
				_ = sim.Sleep(min(left, ctxCheck))
			}
		})
		return errors.Join(sim.Run(2*length), context.Cause(ctx))
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
	r.graph.close()
	if r.sched != nil {
		errs = append(errs, r.sched.Close())
	}
	for _, c := range r.conns {
		errs = append(errs, c.Close())
	}
	for _, l := range append(r.from, r.to) {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	if r.idle != nil {
		errs = append(errs, r.idle.Close())
	}
	if r.bed != nil {
		errs = append(errs, r.bed.Close())
	}
	return errors.Join(errs...)
}
