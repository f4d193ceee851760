package deterministic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/flow"
)

// The link of the paper: Gigabit Ethernet with frames of 1500 bytes. A link in memory counts the
// bytes of a frame without preamble, FCS and gap, 1082 of 1106 bytes with a full payload, so that
// 1 Gb/s are 978 Mb/s.
const (
	linkRate  = 978_000_000
	linkDelay = 5 * time.Microsecond
	linkMTU   = 1500
	pathMTU   = 1024
	// overhead is what each packet of a WRITE takes besides its payload, in bytes.
	overhead = 58
)

// method is a way to send messages of several priorities over one link.
type method struct {
	name string
	// layer selects the scheduler of package transport/flow. Otherwise all messages are posted at
	// once.
	layer bool
	// classes gives the streams the traffic classes of the engine. noLimit turns off the limit of
	// what is queued below it.
	classes, noLimit bool
	// part is the number of bytes between two preemption points. 0 means none for the layer, and
	// any packet for the engine.
	part int
}

// The methods.
var (
	noClasses  = method{name: "no_classes"}
	wholeLayer = method{name: "layer", layer: true}
	splitLayer = method{name: "layer_64KiB", layer: true, part: 64 << 10}
	classes    = method{name: "classes", classes: true}
	noLimit    = method{name: "classes_no_limit", classes: true, noLimit: true}
)

// baselines are the methods that classes is compared with.
var baselines = []method{noClasses, wholeLayer, splitLayer}

// options returns the options of both devices.
func (m *method) options() []roce.Option {
	if !m.classes {
		return nil
	}
	var c [roce.NumClasses]roce.ClassConfig
	for i := range c {
		c[i] = roce.ClassConfig{Order: roce.FIFO, Preempt: m.part}
	}
	o := []roce.Option{roce.WithClasses(c)}
	if m.noLimit {
		o = append(o, roce.WithBacklogLimit(roce.NoBacklogLimit))
	}
	return o
}

// network is two devices in virtual time, and streams from the first one to the second one.
type network struct {
	method
	bed     *testbed.Testbed
	layers  [2]*flow.Layer
	sched   *flow.Scheduler
	streams []*stream
	err     error // of a stream
}

// simulate opens a network, calls f with it, and closes it.
func simulate(m method, seed uint64, f func(n *network) error) (err error) {
	n := &network{method: m}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.open(seed); err != nil {
		return err
	}
	return f(n)
}

// open opens the devices.
func (n *network) open(seed uint64) (err error) {
	n.bed, err = testbed.New(testbed.Config{Virtual: true, MTU: linkMTU, Rate: linkRate, Seed: seed,
		Plan: loopback.Plan{Delay: linkDelay}, Link: loopback.Config{NoTrace: true},
		Options: n.method.options()})
	if err != nil {
		return err
	}
	n.bed.Sim.Add(n)
	if n.method.layer {
		return n.openLayers()
	}
	return nil
}

func (n *network) openLayers() (err error) {
	for i, dev := range n.bed.Dev {
		if n.layers[i], err = flow.NewLayer(dev, flow.LayerConfig{Clock: n.bed.Link.Now,
			Wait: n.bed.Sim.Wait}); err != nil {
			return err
		}
	}
	n.sched, err = flow.NewScheduler(flow.SchedulerConfig{Layers: n.layers[:1],
		Clock: n.bed.Link.Now})
	if err == nil {
		n.bed.Sim.Add(n.sched)
	}
	return err
}

// now returns the virtual time in nanoseconds.
func (n *network) now() int64 { return n.bed.Link.Now() }

// Progress implements loopback.Node: it receives messages.
func (n *network) Progress() (work int) {
	if n.layers[1] != nil {
		work = n.layers[1].Poll()
	}
	for _, s := range n.streams {
		k, err := s.receive()
		work += k
		n.fail(err)
	}
	return work
}

// NextTimeout implements loopback.Node. A network has no timers of its own.
func (n *network) NextTimeout() (int64, bool) { return 0, false }

// fail notes the first error.
func (n *network) fail(err error) {
	if n.err == nil {
		n.err = err
	}
}

// limit is the most virtual time of an experiment. Only a defect makes one take so long.
const limit = time.Hour

// run starts the scheduler and runs script as a process in virtual time.
func (n *network) run(ctx context.Context, script func() error) error {
	if n.sched != nil {
		if err := n.sched.Start(); err != nil {
			return err
		}
	}
	n.bed.Sim.Go(func() { n.fail(script()) })
	return errors.Join(n.bed.Sim.Run(limit), n.err, ctx.Err())
}

// until waits until ready returns true.
func (n *network) until(ctx context.Context, ready func() bool) error {
	err := n.bed.Sim.Wait(ctx, func() bool { return n.err != nil || ready() })
	return errors.Join(err, n.err)
}

// sleepUntil waits until the virtual time is at, in nanoseconds.
func (n *network) sleepUntil(at int64) error {
	if at <= n.now() {
		return nil
	}
	return n.bed.Sim.Sleep(time.Duration(at - n.now()))
}

func (n *network) close() error {
	var errs []error
	if n.sched != nil {
		errs = append(errs, n.sched.Close())
	}
	for _, s := range n.streams {
		errs = append(errs, s.close())
	}
	for _, l := range n.layers {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	if n.bed != nil {
		errs = append(errs, n.bed.Close())
	}
	return errors.Join(errs...)
}

// transmission returns how long a message of size bytes takes on the link.
func transmission(size int) time.Duration {
	packets := (size + pathMTU - 1) / pathMTU
	return time.Duration((size + packets*overhead) * 8 * int(time.Second) / linkRate)
}

// connectOptions are those of all QPs.
var connectOptions = roce.ConnectOptions{MTU: pathMTU}

// count returns the number of messages that have arrived.
func (n *network) count() (all int) {
	for _, s := range n.streams {
		all += s.count
	}
	return all
}

// stream sends messages of one size and priority.
type stream struct {
	n    *network
	conf streamConfig
	// arrived is called when a message is in the receiver's memory, with the times at which it was
	// sent and received.
	arrived func(sent, received int64)
	count   int // messages that have arrived

	verbs *verbsStream
	layer *layerStream
}

// streamConfig describes a stream.
type streamConfig struct {
	name     string
	priority int // 0 to 7
	size     int // bytes
	queue    int // messages that can wait
	period   time.Duration
	// shares is the stream whose newest message this one sends in its own period, without a copy;
	// nil: none.
	shares *stream
}

// add adds a stream. It must be called before run.
func (n *network) add(c streamConfig) (*stream, error) {
	s := &stream{n: n, conf: c}
	n.streams = append(n.streams, s)
	if !n.method.layer {
		v, err := newVerbsStream(s)
		s.verbs = v
		return s, err
	}
	l, err := newLayerStream(s)
	s.layer = l
	return s, err
}

// send sends a message now, behind the previous ones of the stream.
func (s *stream) send() error {
	if s.layer != nil {
		return s.layer.send(s)
	}
	return s.verbs.send(s)
}

// tick sends a message, or lets the stream send its newest one.
func (s *stream) tick() error {
	if s.layer != nil && s.conf.shares != nil {
		return nil // the scheduler's timer
	}
	return s.send()
}

// receive receives messages and returns the amount of work.
func (s *stream) receive() (int, error) {
	switch {
	case s.layer != nil:
		return s.layer.receive(s), nil
	case s.verbs != nil:
		return s.verbs.receive(s)
	}
	return 0, nil
}

// arrive counts a message that was sent at the given time.
func (s *stream) arrive(sent int64) {
	s.count++
	if s.arrived != nil {
		s.arrived(sent, s.n.now())
	}
}

func (s *stream) close() error {
	switch {
	case s.layer != nil:
		return s.layer.close()
	case s.verbs != nil:
		return s.verbs.close()
	}
	return nil
}

func (s *stream) String() string { return fmt.Sprintf("stream %q", s.conf.name) }
