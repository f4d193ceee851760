package roce

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/qp"
)

// How threads meet on a shard.
//
// The owner is whoever holds shard.mu. Others reach it in two ways only: a doorbell (the engine's lock-free list), and a command (a function to be run by the owner). Both follow one pattern: publish, then look at
// "sleeping"; the owner sets "sleeping", then looks at what is published. Go's atomics are sequentially consistent, so
// one of the two sees the other, and no wake-up is lost. Port.Wake is remembered by the port if it comes early.
//
// Commands are combined: who publishes one tries the lock. If that fails, the owner is awake and looks at the list
// before or after it lets go of the lock (unlock; turnLock has the order), or it is asleep and gets a Wake.

// command is a function that the owner of the shard runs.
type command struct {
	f    func(now qp.Time)
	done chan struct{}
}

// lockPause is how long those sleep who need a shard's lock and have nothing else to do, between two tries.
const lockPause = 10 * time.Microsecond

// moreLooks is how often an idle shard looks at the receive ring before it looks round.
const moreLooks = 8

// leaveTime is how long a shard that gathers does nothing at all.
const leaveTime qp.Time = 1000 // ns

// portErrorPause keeps a port that fails at once in Wait from burning a core.
const portErrorPause = time.Millisecond

// bell wakes a sleeping owner. It is the engine's hook for a QP that was put on the empty doorbell list. Any goroutine.
func (s *shard) bell() {
	if s.sleeping.Load() {
		s.port.Wake()
	}
}

// do runs f as the shard's owner and returns when it has run. It gives ErrClosed if the shard takes no commands
// any more. f must not call do.
func (s *shard) do(f func(now qp.Time)) error {
	c := &command{f: f, done: make(chan struct{})}
	s.cmdMu.Lock()
	if s.dead {
		s.cmdMu.Unlock()
		return ErrClosed
	}
	s.cmds = append(s.cmds, c)
	s.cmdReady.Store(true)
	s.cmdMu.Unlock()
	s.mu.order()
	if s.mu.TryLock() {
		s.runCommands()
		s.unlock()
	} else {
		s.bell()
	}
	<-c.done
	return nil
}

// runCommands runs what is on the list. Owner only.
func (s *shard) runCommands() {
	if !s.cmdReady.Load() {
		return
	}
	s.cmdMu.Lock()
	cmds := s.cmds
	s.cmds = nil
	s.cmdReady.Store(false)
	s.cmdMu.Unlock()
	s.idle = false
	for _, c := range cmds {
		c.f(s.now())
		close(c.done)
	}
}

// unlock lets go of the shard, without leaving a command or a waiting caller of CQ.Wait behind. Everyone who had the lock ends so: who
// finds it taken after leaving word is heard by its holder, or by one who had it later.
func (s *shard) unlock() {
	s.mu.Unlock()
	for s.cmdReady.Load() && s.mu.TryLock() {
		s.runCommands()
		s.mu.Unlock()
	}
	s.passOn()
}

// passOn tells one of the callers that stand by that the shard may be free.
func (s *shard) passOn() {
	if s.waiters.Load() > 0 {
		select {
		case s.free <- struct{}{}:
		default:
		}
	}
}

// step runs the commands and one turn. For a microsecond after a turn that found nothing to do it only looks for frames and
// doorbells, and leaves timers and the connection manager alone: what it waits for is found sooner. Owner only.
func (s *shard) step() int {
	s.runCommands()
	if s.closed {
		return 0
	}
	s.hold()
	work := s.look()
	s.unhold()
	return work
}

// look is the part of a step that uses the port.
func (s *shard) look() int {
	if s.gather.until != 0 {
		if now := s.now(); now < s.gather.until {
			return s.leave(now)
		}
	}
	s.giveBack()
	n := s.port.Receive(s.rx[:])
	if n == 0 {
		s.gather.nothing()
	}
	if n == 0 && s.idle && s.ticks.Fresh() && s.eng.Quiet() {
		if n = s.lookAgain(); n == 0 {
			return 0
		}
		s.last = qp.Time(s.ticks.Then()) // a few looks ago
	} else {
		s.last = s.now()
	}
	work := s.turn(s.last, n)
	s.idle = work == 0 && s.ticks != nil
	s.answer = n > 0 && s.ticks != nil
	if s.answer {
		if s.gather.long && s.eng.Gaps(s.last) {
			s.gather.lost()
		}
		s.gather.received(s.last, n)
	}
	return work
}

// leave is look while frames are gathered: the ring is left alone, and all else has its turn once a microsecond.
func (s *shard) leave(now qp.Time) int {
	if s.idle && now-s.last < leaveTime && s.eng.Quiet() {
		return 0
	}
	s.last = now
	work := s.turn(now, 0)
	s.idle, s.answer = work == 0, false
	return work
}

// lookAgain looks at the receive ring a few times in a row: what surrounds a look, from lock to clock, takes several times as long as the
// look itself, and a frame that comes meanwhile waits.
func (s *shard) lookAgain() (n int) {
	for i := 0; i < moreLooks && n == 0; i++ {
		n = s.port.Receive(s.rx[:])
	}
	return n
}

// posted tells the engine of send work requests. With manual progress the poster is mostly who drives the shard, or nobody is at it: then
// there is no need for a doorbell. What is posted right after a turn that brought something is likely the
// answer to it, and leaves at once, the first of them: it saves the poster a turn. Others wait for the next turn, and share its kick.
func (s *shard) posted(q *qp.QP) {
	if !s.manual || !s.mu.TryLock() {
		q.Ring()
		return
	}
	if !s.closed {
		s.eng.Posted(q)
		s.gather.posted()
		if s.answer {
			s.answer = false
			if s.eng.Serving() == q {
				s.reply(q)
			} else {
				s.last = s.now()
				s.transmit(s.last)
			}
		}
	}
	s.unlock()
}

func (s *shard) hold() {
	if s.holder != nil {
		s.holder.Hold()
	}
}

func (s *shard) unhold() {
	if s.holder != nil {
		s.holder.Unhold()
	}
}

// tryStep is step for a caller in manual mode. If another one is at it, there is nothing to do.
func (s *shard) tryStep() int {
	if !s.mu.TryLock() {
		return 0
	}
	n := s.step()
	s.unlock()
	return n
}

// sleep blocks the owner until a frame, a timer, a doorbell or a command. quit is asked once more after the shard
// counts as sleeping, for reasons of the caller's own not to sleep; who makes it true calls Port.Wake afterwards.
//
// A timer that strikes within milliseconds is dear: setting and dropping it makes the kernel set the processor's own, some 2 us a
// sleep on a virtual machine. Nearly all of them are dropped, so the ACKs that are owed leave at once, and while nothing gets lost
// sleeps have a minimum length.
func (s *shard) sleep(quit func() bool) {
	if s.eng.RipenAcks() {
		if s.transmit(s.last); !s.eng.Quiet() && !s.stalled {
			return // there is more than a turn sends
		}
	}
	s.gather.until = 0
	s.sleeping.Store(true)
	defer s.sleeping.Store(false)
	if s.eng.BellPending() || s.cmdReady.Load() || s.stopping.Load() || (quit != nil && quit()) {
		return
	}
	s.ctr.waits++
	s.idle = false
	if err := s.port.Wait(s.untilNext(s.last)); err != nil {
		s.ctr.portErrors++
		time.Sleep(portErrorPause)
	}
}

// run is the progress goroutine of auto mode: it owns the shard until it is told to stop.
func (s *shard) run(cpu int, started chan<- error) {
	runtime.LockOSThread()
	if cpu >= 0 {
		// The thread keeps its affinity and is not given back: it ends with the goroutine.
		if err := pinThread(cpu); err != nil {
			started <- err
			return
		}
	} else {
		defer runtime.UnlockOSThread()
	}
	for !s.mu.TryLock() { // who runs a command has it for a moment
		time.Sleep(lockPause)
	}
	defer s.unlock()
	started <- nil
	autoDevices.Add(1)
	defer autoDevices.Add(-1)
	idle := s.newIdler()
	for !s.stopping.Load() {
		if idle.after(s.step(), s.last) {
			s.sleep(nil)
		}
	}
}

// autoDevices counts the progress goroutines of the process, each of which may keep a core busy.
var autoDevices atomic.Int32

// longSpin is how many times longer those spin who lose packets, or whose stream has paused.
const longSpin = 8

// idler says when to stop spinning.
type idler struct {
	eng    *qp.Engine
	stream *gatherer
	spin   time.Duration // spinDefault: see cores
	cores  int32         // how many there are; with as many progress goroutines nobody spins by default
	since  qp.Time       // when there was nothing to do for the first time since the last work; 0 = there was work
}

func (s *shard) newIdler() idler {
	return idler{eng: s.eng, stream: &s.gather, spin: s.spin, cores: int32(runtime.GOMAXPROCS(0))}
}

func (i *idler) limit() time.Duration {
	switch {
	case i.spin != spinDefault:
		return i.spin
	case autoDevices.Load() >= i.cores:
		return 0
	}
	return DefaultSpin
}

// after takes what the step at time now did and tells whether it is time to block.
func (i *idler) after(work int, now qp.Time) bool {
	if work > 0 {
		i.since = 0
		return false
	}
	spun := now - i.since
	if i.eng.Gaps(now) || i.stream.paused(now) {
		spun /= longSpin
	}
	limit := i.limit()
	switch {
	case limit <= 0:
		return true
	case i.since == 0:
		i.since = now
		return false
	case spun < qp.Time(limit):
		return false
	}
	i.since = 0
	return true
}

func pinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// await drives the shard until ready says so (manual mode): the first caller owns it and blocks in the port, others
// wait for a notification on wake or for the shard to become free. ready is called by the owner and by others alike,
// and has to become true when the device closes.
func (s *shard) await(ctx context.Context, wake <-chan struct{}, ready func() bool) {
	var stop func() bool // set once a cancelled ctx wakes the port
	defer func() {
		if stop != nil {
			stop()
		}
		s.passOn() // what woke this caller may have been meant for another
	}()
	over := false // ready may say so only once
	quit := func() bool {
		over = over || ctx.Err() != nil || ready()
		return over
	}
	idle := s.newIdler()
	for !quit() {
		if !s.mu.TryLock() {
			if s.standBy(ctx, wake) {
				return
			}
			continue
		}
		for !s.closed && !s.stopping.Load() {
			work := s.step()
			if quit() {
				break
			}
			if !idle.after(work, s.last) {
				continue
			}
			if stop == nil && ctx.Done() != nil {
				stop = context.AfterFunc(ctx, s.port.Wake)
			}
			s.sleep(quit)
		}
		s.unlock()
	}
}

// standBy waits while another caller drives the shard, and tells whether wake ended it. The lock is tried once more
// after the caller counts as waiting: the owner looks at the count after it has let go of the lock, so one of the
// two notices.
func (s *shard) standBy(ctx context.Context, wake <-chan struct{}) bool {
	s.waiters.Add(1)
	defer s.waiters.Add(-1)
	s.mu.order()
	if s.mu.TryLock() {
		s.unlock()
		return false
	}
	select {
	case <-wake:
		return true
	case <-s.free:
	case <-ctx.Done():
	}
	return false
}

// stop ends the shard: the goroutine of auto mode, callers of CQ.Wait, commands, the port.
func (s *shard) stop(done <-chan struct{}) error {
	s.stopping.Store(true)
	s.port.Wake()
	if done != nil {
		<-done
	}
	s.lockHard()
	err := s.shut()
	s.cmdMu.Lock()
	s.dead = true
	s.cmdMu.Unlock()
	s.runCommands()
	s.unlock()
	return err
}

// lockHard takes the lock from an owner that may be asleep in CQ.Wait (manual mode).
func (s *shard) lockHard() {
	for !s.mu.TryLock() {
		s.bell()
		time.Sleep(lockPause)
	}
}
