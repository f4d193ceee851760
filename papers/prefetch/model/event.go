package model

// event is something that happens at a time. Events of the same time happen in the order in which they were set, so that a run
// is the same each time.
type event struct {
	at  span
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// clock is simulated time: the events to come, in a binary heap.
type clock struct {
	now    span
	seq    uint64
	events []event
}

// at sets an event for t, or for now if that is past.
func (c *clock) at(t span, do func()) {
	c.seq++
	c.events = append(c.events, event{at: max(t, c.now), seq: c.seq, do: do})
	for i := len(c.events) - 1; i > 0; {
		up := (i - 1) / 2
		if !c.events[i].before(&c.events[up]) {
			return
		}
		c.events[i], c.events[up] = c.events[up], c.events[i]
		i = up
	}
}

// step lets the next event happen. There is one.
func (c *clock) step() {
	e, last := c.events[0], len(c.events)-1
	c.events[0] = c.events[last]
	c.events[last] = event{} // for the garbage collector
	c.events = c.events[:last]
	for i := 0; ; {
		least := i
		for k := 2*i + 1; k <= 2*i+2 && k < last; k++ {
			if c.events[k].before(&c.events[least]) {
				least = k
			}
		}
		if least == i {
			break
		}
		c.events[i], c.events[least] = c.events[least], c.events[i]
		i = least
	}
	c.now = e.at
	e.do()
}

// wire is a serial line: what is put on it leaves in order, at its rate.
type wire struct {
	rate  int64
	free  span
	bytes int64
}

// send puts bytes on the line at t at the earliest, and says when the last of them has passed.
func (w *wire) send(t span, bytes int) span {
	w.free = max(w.free, t) + serial(bytes, w.rate)
	w.bytes += int64(bytes)
	return w.free
}
