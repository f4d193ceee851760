package loopback

import "github.com/gorxe/gorxe/driver"

// maxHeld bounds the frames that one lane holds back. When it is full, the
// earliest goes out before its time, so that the Port below does not starve.
const maxHeld = 256

// lane is one direction of an injector: it decides about frames and holds
// back those that are late. Its owner's thread only.
type lane struct {
	dice  dice
	late  dueQueue
	slots [maxHeld]driver.Buf // frames in late, by arrival.buf
	free  []uint32
}

func (l *lane) init(plan Plan, seed uint64, stream int) {
	l.dice = newDice(plan, seed, stream)
	l.late.init(maxHeld)
	l.free = make([]uint32, maxHeld)
	for i := range l.free {
		l.free[i] = uint32(i)
	}
}

// hold keeps a frame until it is due. There must be room.
func (l *lane) hold(b driver.Buf, due int64) {
	slot := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.slots[slot] = b
	l.late.push(arrival{due: due, buf: slot})
}

func (l *lane) full() bool { return len(l.free) == 0 }

// first takes the frame that is due first; there must be one.
func (l *lane) first() driver.Buf {
	a := l.late.pop()
	b := l.slots[a.buf]
	l.slots[a.buf] = driver.Buf{}
	l.free = append(l.free, a.buf)
	return b
}

// ripe reports whether a held frame is due.
func (l *lane) ripe(now int64) bool {
	due, ok := l.late.next()
	return ok && due <= now
}

// hasten makes the frame that is due first due now.
func (l *lane) hasten(now int64) {
	if len(l.late.heap) > 0 && l.late.heap[0].due > now {
		l.late.heap[0].due = now // it stays the earliest
	}
}
