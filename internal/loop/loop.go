package loop

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/clock"
	"github.com/gorxe/gorxe/qp"
)

// Host does what the engine does not do itself. The owner calls all its methods; they must not call
// Do.
type Host interface {
	// HandleQP1 handles a packet to QP1. p is valid during the call only.
	HandleQP1(now qp.Time, p *bth.Packet)
	// Work does what is due at time now, and sends packets with Loop.Buffer and Loop.Send. It
	// returns the amount of work done, 0 for none. The loop calls it in every step, but may skip it
	// in a few steps that receive frames.
	Work(now qp.Time) int
	// NextTimeout returns the latest time at which Work must be called; false: no timer runs.
	NextTimeout() (qp.Time, bool)
	// HandleEvent handles an asynchronous event of the engine.
	HandleEvent(now qp.Time, e qp.Event)
}

// Guest serves programs whose queues and memory are outside this process.
type Guest interface {
	// Doorbells tells the engine which QPs have new work requests. The owner calls it at the start
	// of each step. slept is true after the owner has slept, and rung if the descriptor of SetGuest
	// was readable then.
	Doorbells(slept, rung bool)
	// Settle writes what the engine has received to the memory of the programs, and then makes
	// completions visible to them. The owner calls it after it has handled the frames of a step,
	// before it sends packets, and at the end of the step. The frames are valid until then.
	Settle(now qp.Time)
	// Sleeps is called before the owner sleeps. The Guest decides whether doorbells wake it up, and
	// returns true if there are new ones.
	Sleeps(crowded bool) bool
	// Busy reports whether all QPs have so many work requests in progress that no program waits for
	// the owner.
	Busy() bool
}

// Config holds the parameters of New.
type Config struct {
	Port   driver.Port
	Engine *qp.Engine
	Host   Host
	Manual bool          // steps are run by TryStep and Await, not by a goroutine
	Spin   time.Duration // time to spin before blocking; AutoSpin for the default

	// Failed is called once by the owner when the port does not work any more: it was closed, or
	// its interface was removed. It must not call Do. It may be nil.
	Failed func(now qp.Time, err error)
	// IsMemory reports whether a registered region contains the address. The owner calls it when an
	// access to memory fails. If it returns true, the loop closes the port and calls Failed with
	// ErrFault. If it is nil or returns false, the program ends.
	IsMemory func(addr uintptr) bool

	// LinkRate is the rate of the Ethernet link in bits per second. The loop then computes the
	// backlog (see bound) instead of asking the port. 0: it asks the port.
	LinkRate int64
	// BacklogLimit limits the backlog, in bytes; 0: two frames; negative: there is no limit.
	BacklogLimit int

	// Clock is virtual time in nanoseconds, starting above 0. Nil is the system's clock. With a
	// Clock the loop must be driven by TryStep alone.
	Clock func() int64
}

// Loop joins a Port to an engine. It owns both. Fields below "owner" belong to the goroutine that
// holds mu.
type Loop struct {
	host   Host
	guest  Guest          // may be nil. Owner
	bells  driver.Watcher // of the guest's descriptor; nil: none. Owner
	port   driver.Port
	eng    *qp.Engine
	clock  func() int64 // owner's
	ticks  *clock.Clock // the same; nil in virtual time
	manual bool
	spin   time.Duration

	// simulated is set in a bubble of testing/synctest, where time passes only while all goroutines
	// block: the loop never spins there.
	simulated bool

	// Shared with other goroutines.
	mu       ownerLock
	drivers  atomic.Int32  // callers of Drive; while there are any, they run the steps
	resting  atomic.Bool   // the progress goroutine is in rest
	resume   chan struct{} // wakes the progress goroutine that rests
	sleeping atomic.Bool   // the owner is in Port.Wait or about to call it
	stopping atomic.Bool   // Stop was called
	cmdReady atomic.Bool   // cmds is not empty
	cmdMu    sync.Mutex
	cmds     []*command
	dead     bool          // under cmdMu: commands are refused
	waiters  atomic.Int32  // goroutines in waitForLock
	empty    atomic.Uint32 // calls of Yield
	free     chan struct{}
	failed   atomic.Bool   // the port does not work any more
	nudge    chan struct{} // wakes an owner that sleeps although the port has failed
	ended    chan struct{} // closed at the end of the progress goroutine; nil if there is none

	// owner
	onFailed   func(now qp.Time, err error) // Config.Failed
	isMemory   func(addr uintptr) bool      // Config.IsMemory
	closed     bool
	last       qp.Time           // the time that the latest step read
	idle       bool              // the latest complete step found nothing to do
	received   bool              // the latest complete step received frames
	holder     driver.Holder     // port, if it implements it
	overlapper driver.Overlapper // the same
	kernel     bool              // the port sleeps in the kernel
	dec        frame.Decoder
	enc        frame.Encoder
	joiner     joiner
	pkt        bth.Packet
	netHeader  [bth.MaxNetHeader]byte // of pkt; see handleOverlapping
	runHeader  []byte                 // headers before the BTH of the latest packet of a run
	overlapped [bth.MaxNetHeader]byte // what these have overwritten; see saveEnd
	rx         [rxBatch]driver.Buf
	unreleased int // frames of rx that are to be released
	previews   [rxBatch][]byte
	tx         [txBatch]driver.Buf // free transmit buffers are tx[txAt:txAt+txn]
	txAt       int
	txn        int
	postponed  int  // consecutive steps that skipped the background work
	stalled    bool // the port had no transmit buffer for a packet
	local      []bth.GID
	sources    *Sources
	vlan       uint16 // ID of the port's VLAN, 0: untagged
	ctr        Counters
	coalesce   coalescer
	bound      bound
	tracer     *tracer // nil: packets are not traced
	attended   bool    // the owner is the progress goroutine
	sharp      bool    // sharpenTimers was called
	slept      bool    // since the latest step
	crowded    bool    // SetCrowded
	lingers    lingers
	yielded    qp.Time // time of the latest yield
	pinned     bool    // the thread of the progress goroutine is pinned to a CPU
	loose      bool    // the progress goroutine is not locked to its thread
}

// New creates a loop and sets the engine's hooks. It becomes the engine's Host.
func New(c Config) *Loop {
	l := &Loop{
		host: c.Host, port: c.Port, eng: c.Engine, clock: c.Clock, manual: c.Manual, spin: c.Spin,
		free: make(chan struct{}, 1), resume: make(chan struct{}, 1),
		nudge: make(chan struct{}, 1), onFailed: c.Failed, isMemory: c.IsMemory,
		sources: NewSources(nil, nil), runHeader: make([]byte, 0, bth.MaxNetHeader),
	}
	l.holder, _ = driver.Find[driver.Holder](c.Port)
	_, l.kernel = driver.Find[driver.Watcher](c.Port)
	// Not Find: a wrapper looks at the frames before the loop does.
	if l.overlapper, _ = c.Port.(driver.Overlapper); l.overlapper != nil {
		l.overlapper.OverlapHeaders()
	}
	l.joiner.port, _ = c.Port.(driver.RunSender)
	l.bound.init(&c)
	if l.enc.SourcePort = c.Port.Info().SourcePort; l.enc.SourcePort != 0 {
		l.dec.RecoverIDs()
	}
	if l.clock == nil {
		start, newClock := time.Now(), clock.New
		if l.simulated = clock.Simulated(); l.simulated {
			l.spin, newClock = 0, clock.NewPlain
		}
		l.ticks = newClock(func() int64 { return int64(time.Since(start)) + 1 })
		l.clock = l.ticks.Now
	}
	l.eng.SetDoorbellHook(l.Wake)
	l.eng.SetHost(l)
	l.eng.DeferPayloads()
	return l
}

// SetLocal sets the addresses that packets may be sent to, and those that datagrams may come from.
// The loop keeps the slice. Owner only.
func (l *Loop) SetLocal(gids []bth.GID, s *Sources) {
	l.local, l.sources = gids, s
	l.vlan = l.port.Info().VLAN
}

// SetGuest sets the Guest, and the descriptor that is readable if the Guest has doorbells, or -1.
// The owner then does not sleep while the descriptor is readable. It returns false if the port
// cannot watch a descriptor: the Guest must call Wake. Owner only.
func (l *Loop) SetGuest(g Guest, fd int) bool {
	l.guest = g
	w, ok := driver.Find[driver.Watcher](l.port)
	if l.bells = w; ok && !l.closed {
		w.Watch(fd)
	}
	return ok
}

// SetCrowded makes an idle owner sleep at once, because others need its CPU. Owner only.
func (l *Loop) SetCrowded(on bool) {
	l.crowded = on
	l.eng.KeepAcks(on)
}

// PortInfo describes the port; false: it is closed. Owner only.
func (l *Loop) PortInfo() (driver.Info, bool) {
	if l.closed {
		return driver.Info{}, false
	}
	return l.port.Info(), true
}

// CheckPort calls Config.Failed if the port does not work any more. Call it after each change that
// the port reports. Owner only.
func (l *Loop) CheckPort() {
	if l.closed {
		return
	}
	// The length of the buffers is that of the MTU when they were allocated. The engine drops what
	// does not fit in them, which would not use them up.
	l.freeBuffers()
	if err := l.port.Wait(0); err != nil {
		l.fail(err)
	}
}

// fail records that the port does not work any more.
func (l *Loop) fail(err error) {
	if !l.failed.Swap(true) && l.onFailed != nil {
		l.onFailed(l.now(), err)
	}
}

func (l *Loop) now() qp.Time {
	if l.ticks != nil {
		return qp.Time(l.ticks.Now())
	}
	return qp.Time(l.clock())
}

// step runs commands and one iteration of the loop, and returns how much work it did. Owner only.
func (l *Loop) step() int {
	l.runCommands()
	if l.closed {
		return 0
	}
	if l.guest != nil {
		l.guest.Doorbells(l.slept, l.slept && l.bells != nil && l.bells.Watched())
		l.slept = false
	}
	if l.holder == nil {
		return l.poll()
	}
	l.holder.Hold()
	work := l.poll()
	l.holder.Unhold()
	return work
}

// poll is the part of a step that uses the port. For a microsecond after a step without work it
// only polls the receive ring and doorbells, so that what the owner waits for is found sooner.
func (l *Loop) poll() int {
	if l.coalesce.until != 0 {
		if now := l.now(); now < l.coalesce.until {
			return l.skipReceive(now)
		}
	}
	l.releaseFrames()
	n := l.port.Receive(l.rx[:])
	if n == 0 {
		l.coalesce.until = 0
	}
	if n == 0 && l.idle && l.ticks.Fresh() && l.eng.Idle() {
		if n = l.pollAgain(); n == 0 {
			return 0
		}
		l.last = qp.Time(l.ticks.Then()) // a few polls ago
	} else {
		l.last = l.now()
	}
	work := l.process(l.last, n)
	l.idle = work == 0 && l.ticks != nil
	l.received = n > 0 && l.ticks != nil
	if l.received {
		if l.eng.TopClass() > 0 {
			l.coalesce.posted() // some peer may be waiting
		}
		l.coalesce.batch(l.last)
	}
	return work
}

// skipReceive is poll while frames are being coalesced: it leaves the receive ring alone and does
// the other work once a microsecond.
func (l *Loop) skipReceive(now qp.Time) int {
	if l.idle && now-l.last < coalesceBackground && l.eng.Idle() {
		return 0
	}
	l.last = now
	work := l.process(now, 0)
	l.idle, l.received = work == 0, false
	return work
}

// pollAgain polls the receive ring a few times in a row. What surrounds a poll, from the lock to
// the clock, takes several times as long as the poll itself.
func (l *Loop) pollAgain() (n int) {
	for i := 0; i < idlePolls && n == 0; i++ {
		n = l.port.Receive(l.rx[:])
	}
	return n
}

// process handles the n frames in rx and doorbells, sends a batch of packets and does the
// background work. It returns how much it did.
func (l *Loop) process(now qp.Time, n int) int {
	l.ctr.Steps++
	work := l.receive(now, n)
	if l.guest == nil {
		return work + l.advance(now, n)
	}
	l.guest.Settle(now)
	work += l.advance(now, n)
	l.guest.Settle(now)
	return work
}

// advance is process after the n frames were handled.
func (l *Loop) advance(now qp.Time, n int) (work int) {
	if l.eng.DoorbellPending() {
		l.eng.HandleDoorbells(now)
		l.coalesce.posted()
		work++
	}
	// Posted work requests leave before anything else is done.
	work += l.transmit(now)
	if n > 0 && l.postponed < maxPostponed && !l.eng.Filling() {
		l.postponed++
		return work
	}
	l.postponed = 0
	return work + l.background(now)
}

// background does the work of a step apart from moving packets: timers, the host's work, events.
func (l *Loop) background(now qp.Time) int {
	work := 0
	if t, ok := l.eng.NextTimeout(); ok && t <= now {
		l.eng.HandleTimeout(now)
		work += 1 + l.transmit(now)
	}
	work += l.host.Work(now)
	for range eventsPerStep {
		e, ok := l.eng.PollEvent()
		if !ok {
			break
		}
		l.host.HandleEvent(now, e)
		work++
	}
	return work
}

// NextTimeout returns when the engine, the host or the loop has something to do; false: no timer
// runs. Owner only.
func (l *Loop) NextTimeout() (qp.Time, bool) {
	t, ok := l.eng.NextTimeout()
	if h, more := l.host.NextTimeout(); more && (!ok || h < t) {
		t, ok = h, true
	}
	if h, more := l.held(); more && (!ok || h < t) {
		t, ok = h, true
	}
	return t, ok
}

// close returns all buffers to the port and closes it. Owner only.
func (l *Loop) close() error {
	if l.closed {
		return nil
	}
	l.closed = true
	l.releaseFrames()
	l.freeBuffers()
	return l.port.Close()
}
