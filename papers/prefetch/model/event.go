package model

// event is a call of do at a time. Events of the same time happen in the order in which they were
// scheduled, so that every run is the same.
type event struct {
	at  span
	seq uint64
	do  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.seq < f.seq }

// clock is simulated time: the future events in a binary heap.
type clock struct {
	now    span
	seq    uint64
	events []event
}

// at schedules an event for t, or for now if t is past.
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

// step moves time to the next event and runs it. There must be one.
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

// wire is a serial line: data leaves in order, at its rate.
type wire struct {
	rate  int64 // bits per second
	free  span  // when the line is idle
	bytes int64 // sent
}

// send puts bytes on the line at t or when it is idle, and returns when the last one has passed.
func (w *wire) send(t span, bytes int) span {
	w.free = max(w.free, t) + serial(bytes, w.rate)
	w.bytes += int64(bytes)
	return w.free
}
