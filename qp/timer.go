package qp

import "math/bits"

// The timer wheel has five levels of 64 slots with ticks of 16 us. Setting and stopping a timer and
// finding the next expiry take constant time for any number of QPs. A slot is a linked list of QPs.
// The level of a QP is that of the highest bit in which its tick differs from the current one. It
// moves down when the wheel reaches its slot.
const (
	tickShift   = 14 // a tick is 2^14 ns
	levelBits   = 6
	wheelLevels = 5
	levelSlots  = 1 << levelBits
	// Later timers (about 4.8 hours) are set again on the way. One slot of the top level stays
	// unused, to distinguish a full turn from none.
	maxTicks = (levelSlots - 1) << (levelBits * (wheelLevels - 1))
)

type wheel struct {
	now   uint64 // current tick
	bits  [wheelLevels]uint64
	slots [wheelLevels][levelSlots]*QP
}

// timer is a QP's entry in the wheel. The deadline may be later than the entry's tick. The QP then
// expires early and is inserted again, which saves a list operation for every acknowledgment.
type timer struct {
	deadline   Time
	next, prev *QP
	tick       uint32 // low bits; all ticks in the wheel are within maxTicks of each other
	level      uint8
	slot       uint8
	armed      bool
}

// setTimer makes HandleTimeout call q.onTimer at t or up to one tick later. If t is later than
// before, the entry stays where it is.
func (e *Engine) setTimer(q *QP, t Time) {
	w, entry := &e.wheel, &q.rec.timer
	entry.deadline = t
	if t == Never {
		return
	}
	tick := w.tickFor(t)
	if entry.armed {
		if int32(entry.tick-uint32(tick)) <= 0 {
			return
		}
		w.remove(q)
	}
	w.insert(q, tick)
}

// stopTimer removes the QP from the wheel.
func (e *Engine) stopTimer(q *QP) {
	q.rec.timer.deadline = Never
	if q.rec.timer.armed {
		e.wheel.remove(q)
	}
}

// tickFor rounds up, so that no timer fires early.
func (w *wheel) tickFor(t Time) uint64 {
	tick := uint64(max(t, 0)+1<<tickShift-1) >> tickShift
	return min(max(tick, w.now), w.now+maxTicks)
}

func (w *wheel) insert(q *QP, tick uint64) {
	level := uint8(0)
	if x := tick ^ w.now; x != 0 {
		level = min(uint8((bits.Len64(x)-1)/levelBits), wheelLevels-1)
	}
	slot := uint8(tick>>(level*levelBits)) & (levelSlots - 1)
	t := &q.rec.timer
	t.tick, t.level, t.slot, t.armed = uint32(tick), level, slot, true
	head := &w.slots[level][slot]
	t.prev, t.next = nil, *head
	if *head != nil {
		(*head).rec.timer.prev = q
	}
	*head = q
	w.bits[level] |= 1 << slot
}

func (w *wheel) remove(q *QP) {
	t := &q.rec.timer
	if t.prev != nil {
		t.prev.rec.timer.next = t.next
	} else {
		w.slots[t.level][t.slot] = t.next
		if t.next == nil {
			w.bits[t.level] &^= 1 << t.slot
		}
	}
	if t.next != nil {
		t.next.rec.timer.prev = t.prev
	}
	t.next, t.prev, t.armed = nil, nil, false
}

// next returns the earliest occupied slot and the tick at which it begins. It is on the lowest
// occupied level, because entries of a higher level differ from now in a higher bit. Only the top
// level can wrap around.
func (w *wheel) next() (level, slot int, tick uint64, ok bool) {
	for level := range wheelLevels {
		if w.bits[level] == 0 {
			continue
		}
		shift := level * levelBits
		cur := int(w.now>>shift) & (levelSlots - 1)
		distance := bits.TrailingZeros64(bits.RotateLeft64(w.bits[level], -cur))
		tick := (w.now>>shift + uint64(distance)) << shift
		return level, (cur + distance) & (levelSlots - 1), max(tick, w.now), true
	}
	return 0, 0, 0, false
}

// HandleTimeout handles all timers that have expired at time now, and executes a bounded number of
// packets that were held after a gap.
func (e *Engine) HandleTimeout(now Time) {
	e.continueFill(now)
	w := &e.wheel
	target := uint64(max(now, 0)) >> tickShift
	if target < w.now {
		return
	}
	if e.pool.cached > idleReorderMemory {
		e.pool.trim(now - e.lastGap)
	}
	for {
		level, slot, tick, ok := w.next()
		if !ok || tick > target {
			break
		}
		w.now = tick
		e.expire(now, level, slot, target)
	}
	w.now = target
}

// expire empties a slot. Timers that are due fire, the others are inserted again.
func (e *Engine) expire(now Time, level, slot int, target uint64) {
	w := &e.wheel
	q := w.slots[level][slot]
	w.slots[level][slot] = nil
	w.bits[level] &^= 1 << slot
	for q != nil {
		t := &q.rec.timer
		next := t.next
		t.next, t.prev, t.armed = nil, nil, false
		switch {
		case t.deadline == Never:
		case t.deadline <= now:
			e.c.Timers++
			q.onTimer(now)
		default:
			// Do not expire it again in this call, unless target is further than the wheel's range
			// after a long pause. Then the entry marks a tick on the way there.
			w.insert(q, min(max(w.tickFor(t.deadline), target+1), w.now+maxTicks))
		}
		q = next
	}
}

// NextTimeout returns the earliest time at which HandleTimeout or PollTransmit has work because of
// a timer or held packets, and false if there are none.
func (e *Engine) NextTimeout() (Time, bool) {
	t := Never
	if _, _, tick, ok := e.wheel.next(); ok {
		t = Time(tick << tickShift)
	}
	t = min(t, e.nextAck())
	if e.Filling() {
		t = min(t, e.lastGap) // now or earlier
	}
	if e.classed {
		t = min(t, e.nextTokens())
	}
	return t, t != Never
}
