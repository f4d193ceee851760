package loopback

import (
	"time"

	"github.com/gorxe/gorxe/driver"
)

// injectBatch is how many frames go to the Port below at once.
const injectBatch = 64

// InjectConfig describes an injector.
type InjectConfig struct {
	Seed     uint64
	Transmit Plan // of the frames that the owner sends
	Receive  Plan // of the frames that come
	// Clock in nanoseconds; nil means the monotonic clock.
	Clock func() int64
}

// Inject puts the plan between p and its owner, for the frames that the owner
// sends. Both ends of a wire wrapped so have the plan once in each direction.
// It panics if the plan is not valid: ask Plan.Validate first.
//
// The result has the interfaces that p has of driver.Network and Stats; use
// FaultsOf to see what happened. It belongs to the thread that owns p.
// Late frames go out in time as long as the owner makes any calls: Wait
// returns to send them. A virtual Link does not know of them; use its own
// plan there.
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
	return dress(i, p)
}

// FaultsOf tells what the outermost injector around a Port did to the frames
// it sent and received. The owner's thread only.
func FaultsOf(p driver.Port) (transmit, receive Faults, ok bool) {
	i, ok := outermost[*injector](p)
	if !ok {
		return transmit, receive, false
	}
	return i.tx.dice.counts, i.rx.dice.counts, true
}

// injector is the wrapper of Inject. Every frame it takes from the Port below
// goes back to it exactly once: sent, freed or released; a copy that it makes
// of a received frame is its own.
type injector struct {
	driver.Port
	clock func() int64

	tx      lane
	out     [injectBatch]driver.Buf // frames to send, outN of them
	outN    int
	one     [1]driver.Buf
	refused int // frames that the Port below did not take
	err     error

	rx lane
	receiver
}

func (i *injector) self() any           { return i }
func (i *injector) Unwrap() driver.Port { return i.Port }

// Send decides about each frame. Frames that are lost or late count as handed
// to the wire; an error about a late one is told with the next Send.
func (i *injector) Send(bufs []driver.Buf) (int, error) {
	now := int64(0)
	if !i.tx.dice.idle() || i.tx.late.len() > 0 {
		now = i.clock()
	}
	i.flushDue(now)
	for k := range bufs {
		i.decide(bufs[k], now)
	}
	i.submit()
	n, err := max(len(bufs)-i.refused, 0), i.err
	i.refused, i.err = 0, nil
	return n, err
}

func (i *injector) decide(b driver.Buf, now int64) {
	f := i.tx.dice.draw(now, len(b.B))
	if f.lost {
		i.one[0] = b
		i.Port.Free(i.one[:])
		return
	}
	if f.corrupt {
		i.tx.dice.corrupt(b.B)
	}
	var twin driver.Buf
	if f.dup {
		twin, f.dup = i.twin(b)
	}
	i.dispatch(b, f.due)
	if f.dup {
		i.dispatch(twin, f.dupDue)
	}
}

// twin copies a frame into another transmit buffer, if there is one.
func (i *injector) twin(b driver.Buf) (driver.Buf, bool) {
	if i.Port.Alloc(i.one[:]) == 0 {
		i.tx.dice.counts.Overflow++
		return driver.Buf{}, false
	}
	t := i.one[0]
	t.B = t.B[:copy(t.B, b.B)]
	return t, true
}

// dispatch sends a frame now or later.
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

// flushDue stages the late frames whose time has come.
func (i *injector) flushDue(now int64) {
	for i.tx.ripe(now) {
		i.stage(i.tx.first())
	}
}

// pump sends what has become due. Every call of the owner does it.
func (i *injector) pump() {
	if i.tx.late.len() > 0 {
		i.flushDue(i.clock())
		i.submit()
	}
}

// Alloc implements driver.Port.
func (i *injector) Alloc(bufs []driver.Buf) int {
	i.pump()
	return i.Port.Alloc(bufs)
}

// Wait comes back, maybe early, when a late frame of either direction is due.
func (i *injector) Wait(d time.Duration) error {
	i.pump()
	for _, l := range []*lane{&i.tx, &i.rx} {
		if due, ok := l.late.next(); ok {
			if left := max(time.Duration(due-i.clock()), 0); d < 0 || left < d {
				d = left
			}
		}
	}
	err := i.Port.Wait(d)
	i.pump()
	return err
}
