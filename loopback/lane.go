package loopback

import "github.com/gorxe/gorxe/driver"

// maxHeld is the maximum number of frames that a lane holds back. When it is full, the earliest
// frame leaves early, so that the inner Port does not run out of buffers.
const maxHeld = 256

// lane is one direction of an injector. It decides the fate of frames and holds back delayed ones.
// It belongs to the Port's owner.
type lane struct {
	dice    dice
	delayed dueQueue
	slots   [maxHeld]driver.Buf // delayed frames, by arrival.buf
	free    []uint32
}

func (l *lane) init(plan Plan, seed uint64, stream int) {
	l.dice = newDice(plan, seed, stream)
	l.delayed.init(maxHeld)
	l.free = make([]uint32, maxHeld)
	for i := range l.free {
		l.free[i] = uint32(i)
	}
}

// hold keeps a frame until it is due. The lane must not be full.
func (l *lane) hold(b driver.Buf, due int64) {
	slot := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.slots[slot] = b
	l.delayed.push(arrival{due: due, buf: slot})
}

// decide draws the fate of a frame and flips bits in it if it is to be corrupted.
func (l *lane) decide(b []byte, now int64) fate {
	f := l.dice.draw(now, len(b))
	if f.corrupt {
		l.dice.corrupt(b)
	}
	return f
}

func (l *lane) full() bool { return len(l.free) == 0 }

// first removes the frame with the earliest due time. There must be one.
func (l *lane) first() driver.Buf {
	a := l.delayed.pop()
	b := l.slots[a.buf]
	l.slots[a.buf] = driver.Buf{}
	l.free = append(l.free, a.buf)
	return b
}

// isDue reports whether a held frame is due.
func (l *lane) isDue(now int64) bool {
	due, ok := l.delayed.next()
	return ok && due <= now
}

// expedite makes the frame with the earliest due time due now.
func (l *lane) expedite(now int64) {
	if len(l.delayed.heap) > 0 && l.delayed.heap[0].due > now {
		l.delayed.heap[0].due = now // it remains the earliest
	}
}
