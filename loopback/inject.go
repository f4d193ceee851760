package loopback

import (
	"time"

	"github.com/gorxe/gorxe/driver"
)

// injectBatch is the number of frames passed to the inner Port at once.
const injectBatch = 64

// InjectConfig configures InjectWith.
type InjectConfig struct {
	Seed     uint64
	Transmit Plan // for frames that the owner sends
	Receive  Plan // for frames that arrive
	// Clock returns nanoseconds; nil means the monotonic clock.
	Clock func() int64
}

// Inject returns a Port that applies the plan to the frames that its owner sends through p. If both
// ports of a link are wrapped, the plan applies in each direction. Inject panics if the plan is
// invalid; see Plan.Validate.
//
// The result implements driver.Network and driver.StatsReader if p does; driver.Find finds the
// other interfaces of p. FaultsOf returns its counters. The result belongs to the owner of p.
// Delayed frames are sent in time if the owner keeps calling its methods; Wait returns in time to
// send them. A virtual Link does not know about frames that an injector holds, so use the Link's
// own plan instead.
func Inject(p driver.Port, seed uint64, plan Plan) driver.Port {
	return InjectWith(p, InjectConfig{Seed: seed, Transmit: plan})
}

// InjectWith is Inject with a plan for each direction.
func InjectWith(p driver.Port, c InjectConfig) driver.Port {
	for _, plan := range []*Plan{&c.Transmit, &c.Receive} {
		if err := plan.Validate(); err != nil {
			panic(err)
		}
	}
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() int64 { return startTime + int64(time.Since(start)) }
	}
	i := &injector{Port: p, clock: c.Clock}
	i.tx.init(c.Transmit, c.Seed, 0)
	i.rx.init(c.Receive, c.Seed, 1)
	i.active = c.Receive != Plan{}
	if c.Transmit.Bandwidth > 0 {
		return withInterfaces(&shaper{i}, p)
	}
	return withInterfaces(i, p)
}

// FaultsOf returns the counters of the outermost injector around a Port. Only the owner may call
// it.
func FaultsOf(p driver.Port) (transmit, receive Faults, ok bool) {
	i, ok := outermost[*injector](p)
	if !ok {
		return transmit, receive, false
	}
	return i.tx.dice.counts, i.rx.dice.counts, true
}

// injector is the wrapper of Inject. It returns every buffer of the inner Port exactly once: sent,
// freed or released. A duplicate of a received frame is in the injector's own memory.
type injector struct {
	driver.Port
	clock func() int64

	tx      lane
	out     [injectBatch]driver.Buf // outN frames to send
	outN    int
	one     [1]driver.Buf
	refused int // frames that the inner Port did not send
	err     error

	rx lane
	receiver
}

// shaper is an injector whose transmit plan has a bandwidth. It implements driver.Backlogger.
type shaper struct{ *injector }

// Backlog implements driver.Backlogger. It counts what waits for the bandwidth of the plan, or the
// inner Port's backlog if that is larger.
func (s *shaper) Backlog() (bytes int, rate int64) {
	o := &s.tx.dice.output
	bytes, rate = o.Backlog(s.clock()), o.Rate
	if p, ok := driver.Find[driver.Backlogger](s.Port); ok {
		if n, r := p.Backlog(); n > bytes {
			return n, r
		}
	}
	return bytes, rate
}

func (i *injector) bare() any           { return i }
func (i *injector) Unwrap() driver.Port { return i.Port }

// Send applies the plan to each frame. Lost and delayed frames count as sent. An error from sending
// a delayed frame is returned by the next Send.
func (i *injector) Send(bufs []driver.Buf) (int, error) {
	now := int64(0)
	if !i.tx.dice.idle() || i.tx.delayed.len() > 0 {
		now = i.clock()
	}
	i.stageDue(now)
	for k := range bufs {
		i.transmit(bufs[k], now)
	}
	i.submit()
	n, err := max(len(bufs)-i.refused, 0), i.err
	i.refused, i.err = 0, nil
	return n, err
}

// transmit applies the plan to one frame.
func (i *injector) transmit(b driver.Buf, now int64) {
	f := i.tx.decide(b.B, now)
	if f.lost {
		i.one[0] = b
		i.Port.Free(i.one[:])
		return
	}
	var second driver.Buf
	if f.dup {
		second, f.dup = i.duplicate(b)
	}
	i.dispatch(b, f.due)
	if f.dup {
		i.dispatch(second, f.dupDue)
	}
}

// duplicate copies a frame to another send buffer if one is available.
func (i *injector) duplicate(b driver.Buf) (driver.Buf, bool) {
	if i.Port.Alloc(i.one[:]) == 0 {
		i.tx.dice.counts.Overflow++
		return driver.Buf{}, false
	}
	t := i.one[0]
	t.B = t.B[:copy(t.B, b.B)]
	return t, true
}

// dispatch sends a frame now, or holds it until due.
func (i *injector) dispatch(b driver.Buf, due int64) {
	if due == 0 {
		i.stage(b)
		return
	}
	if i.tx.full() {
		i.tx.dice.counts.Overflow++
		i.stage(i.tx.first())
	}
	i.tx.hold(b, due)
}

func (i *injector) stage(b driver.Buf) {
	if i.outN == len(i.out) {
		i.submit()
	}
	i.out[i.outN] = b
	i.outN++
}

func (i *injector) submit() {
	if i.outN == 0 {
		return
	}
	n, err := i.Port.Send(i.out[:i.outN])
	if err != nil {
		i.err = err
	}
	i.refused += i.outN - n
	i.outN = 0
}

// stageDue stages the delayed frames that are due.
func (i *injector) stageDue(now int64) {
	for i.tx.isDue(now) {
		i.stage(i.tx.first())
	}
}

// sendDue sends the delayed frames that are due. Every call of the owner runs it.
func (i *injector) sendDue() {
	if i.tx.delayed.len() > 0 {
		i.stageDue(i.clock())
		i.submit()
	}
}

// Alloc implements driver.Port.
func (i *injector) Alloc(bufs []driver.Buf) int {
	i.sendDue()
	return i.Port.Alloc(bufs)
}

// Wait implements driver.Port. It may return early because a delayed frame of either direction is
// due.
func (i *injector) Wait(d time.Duration) error {
	i.sendDue()
	for _, l := range []*lane{&i.tx, &i.rx} {
		if due, ok := l.delayed.next(); ok {
			if left := max(time.Duration(due-i.clock()), 0); d < 0 || left < d {
				d = left
			}
		}
	}
	err := i.Port.Wait(d)
	i.sendDue()
	return err
}
