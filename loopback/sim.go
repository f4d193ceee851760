package loopback

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

var (
	// ErrStuck: nothing will ever happen in virtual time: no frame is in flight, no timer runs, and
	// the processes wait. Or frames lie at a port that no node receives from.
	ErrStuck = errors.New("loopback: virtual time is stuck: " +
		"no frame is in flight and no timer runs")
	// ErrTimeout: Drive or Sim.Run has reached its limit of virtual time.
	ErrTimeout = errors.New("loopback: the limit of virtual time is reached: " +
		"raise it, or look for a process that waits in vain")
)

// Sim runs programs that block, such as a client and a server that set up a connection, in virtual
// time. Each program is a process: a goroutine of which only one runs at a time, and which gives
// way to others only while it waits. So a run is reproducible.
//
//	sim := loopback.NewSim(link)
//	expert := roce.Expert{Clock: link.Now, Wait: sim.Wait}
//	... create devices with roce.WithExpert(expert) ...
//	sim.Add(client, server)
//	sim.Go(func() { ... listener.Accept ... })
//	sim.Go(func() { ... client.Dial ... })
//	err := sim.Run(time.Minute)
//
// While all processes wait, Sim drives the devices and moves the clock to the next arrival or
// timer. A process that waits for something else, for example another process, uses Wait or Sleep;
// it must not block on a channel or lock that another process is to release.
type Sim struct {
	link    *Link
	nodes   []Node
	procs   []*process // that have not ended
	running *process   // nil: the caller of Run or Wait outside of a process
	yield   chan struct{}
}

// Node is a device or anything else that has work in virtual time. *roce.Device is a Node.
type Node interface {
	// Progress does the work that is due and returns how much it did.
	Progress() int
	// NextTimeout returns the next time, in nanoseconds of the link's clock, at which Progress must
	// be called; false if there is none.
	NextTimeout() (int64, bool)
}

// process is a goroutine of a Sim.
type process struct {
	resume chan error
	ctx    context.Context
	ready  func() bool // nil: ready
	failed int         // waits that returned an error of Run
	ended  bool
}

// maxFailures is the number of waits that return an error of Run to one process.
const maxFailures = 1000

// canRun reports whether the process no longer has to wait.
func (p *process) canRun() bool { return p.ready == nil || p.ctx.Err() != nil || p.ready() }

// NewSim returns a Sim without nodes and processes. It panics if the link is not virtual.
func NewSim(link *Link) *Sim {
	if !link.virtual {
		panic("loopback: NewSim requires a virtual link")
	}
	return &Sim{link: link, yield: make(chan struct{})}
}

// Add makes the Sim drive nodes, in this order. Something must receive from every port to which
// frames are sent; otherwise Run and Wait return ErrStuck.
func (s *Sim) Add(nodes ...Node) { s.nodes = append(s.nodes, nodes...) }

// Go adds a process. It starts during Run or Wait.
func (s *Sim) Go(f func()) {
	p := &process{resume: make(chan error), ctx: context.Background()}
	s.procs = append(s.procs, p)
	go func() {
		<-p.resume
		defer func() { // also after runtime.Goexit
			p.ended = true
			s.yield <- struct{}{}
		}()
		f()
	}()
}

// Run runs the processes until all have ended. It returns ErrStuck or ErrTimeout if they do not end
// within limit of virtual time: then all waits return that error, until the processes end. A
// process that goes on waiting nevertheless is ended as by runtime.Goexit, after maxFailures waits.
func (s *Sim) Run(limit time.Duration) error {
	err := s.until(context.Background(), limit, func() bool { return len(s.procs) == 0 })
	if err == nil {
		return nil
	}
	for len(s.procs) > 0 {
		s.switchTo(s.procs[0], err)
	}
	return err
}

// Wait returns when ready returns true, with the error of ctx when that is done, or with ErrStuck
// or ErrTimeout. It is the Wait of roce.Expert. In a process it lets the others run. Outside of one
// it runs them itself.
func (s *Sim) Wait(ctx context.Context, ready func() bool) error {
	p := s.running
	if p == nil {
		return s.until(ctx, -1, ready)
	}
	p.ctx, p.ready = ctx, ready
	s.yield <- struct{}{}
	if err := <-p.resume; err != nil {
		if p.failed++; p.failed > maxFailures {
			runtime.Goexit()
		}
		return err
	}
	if !ready() {
		return ctx.Err()
	}
	return nil
}

// Sleep waits for d of virtual time.
func (s *Sim) Sleep(d time.Duration) error {
	at := s.link.Now() + int64(d)
	wake := &alarm{s.link, at}
	s.nodes = append(s.nodes, wake)
	err := s.Wait(context.Background(), func() bool { return s.link.Now() >= at })
	for i, n := range s.nodes {
		if n == Node(wake) {
			s.nodes = append(s.nodes[:i:i], s.nodes[i+1:]...)
			break
		}
	}
	return err
}

// alarm is a Node that only has a timer.
type alarm struct {
	link *Link
	at   int64
}

func (a *alarm) Progress() int { return 0 }

func (a *alarm) NextTimeout() (int64, bool) { return a.at, a.at > a.link.Now() }

// until runs processes and nodes until done returns true. A negative limit means none.
func (s *Sim) until(ctx context.Context, limit time.Duration, done func() bool) error {
	began := s.link.Now()
	end := began + int64(limit)
	const patience = 1000 // steps in which something is due and nobody does it
	for idle := 0; ; {
		for s.runProcesses() {
		}
		if done() {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if s.progress() {
			continue
		}
		next, ok := s.nextEvent()
		if idle++; next > s.link.Now() {
			idle = 0
		}
		switch {
		case !ok, idle > patience:
			return fmt.Errorf("%w (%s)", ErrStuck, s.state(began))
		case limit >= 0 && next > end:
			return fmt.Errorf("%w (%v; %s)", ErrTimeout, limit, s.state(began))
		}
		s.link.Advance(time.Duration(max(1, next-s.link.Now())))
	}
}

// runProcesses runs each process that is ready until it waits or ends, and reports whether there
// was one.
func (s *Sim) runProcesses() (some bool) {
	for i := 0; i < len(s.procs); i++ {
		p := s.procs[i]
		if !p.canRun() {
			continue
		}
		some = true
		if s.switchTo(p, nil); p.ended {
			i--
		}
	}
	return some
}

// switchTo runs p until it waits or ends. Its current Wait returns err.
func (s *Sim) switchTo(p *process, err error) {
	caller := s.running
	s.running, p.ready = p, nil
	p.resume <- err
	<-s.yield
	s.running = caller
	if !p.ended {
		return
	}
	for i := range s.procs {
		if s.procs[i] == p {
			s.procs = append(s.procs[:i], s.procs[i+1:]...)
			break
		}
	}
}

// progress lets every node do what is due, and reports whether any had work.
func (s *Sim) progress() (busy bool) {
	for _, n := range s.nodes {
		busy = n.Progress() > 0 || busy
	}
	return busy
}

// nextEvent returns the time of the next arrival or timer.
func (s *Sim) nextEvent() (next int64, ok bool) {
	next, ok = s.link.NextEvent()
	for _, n := range s.nodes {
		if at, have := n.NextTimeout(); have && (!ok || at < next) {
			next, ok = at, true
		}
	}
	return next, ok
}
