package core

// timerKind is what a timer is for.
type timerKind uint8

const (
	tick   timerKind = iota // an arrival of a source
	expiry                  // the deadline of a task
	hold                    // the end of a task
)

type timerID int32

// timer is a timer that may run. of is the source or the task.
type timer struct {
	at   int64
	of   int32
	pos  int32 // in heap.order, -1: does not run
	kind timerKind
}

// heap orders the timers that run by time, and equal times by their creation. After all timers have
// been added, it does not allocate.
type heap struct {
	all   []timer
	order []timerID
}

func (h *heap) add(t timer) timerID {
	t.pos = -1
	h.all = append(h.all, t)
	if cap(h.order) < len(h.all) {
		h.order = append(make([]timerID, 0, 2*len(h.all)), h.order...)
	}
	return timerID(len(h.all) - 1)
}

// first returns the timer that is due first, -1 if none runs.
func (h *heap) first() (timerID, int64) {
	if len(h.order) == 0 {
		return -1, 0
	}
	return h.order[0], h.all[h.order[0]].at
}

// due reports whether a timer runs and should have been handled by now.
func (h *heap) due(id timerID, now int64) bool { t := &h.all[id]; return t.pos >= 0 && t.at <= now }

// set starts a timer or changes its time.
func (h *heap) set(id timerID, at int64) {
	t := &h.all[id]
	t.at = at
	if t.pos < 0 {
		t.pos = int32(len(h.order))
		h.order = append(h.order, id)
	}
	h.fix(int(t.pos))
}

// clear stops a timer.
func (h *heap) clear(id timerID) {
	at := int(h.all[id].pos)
	if at < 0 {
		return
	}
	last := len(h.order) - 1
	h.swap(at, last)
	h.order = h.order[:last]
	h.all[id].pos = -1
	if at < last {
		h.fix(at)
	}
}

func (h *heap) less(i, j int) bool {
	a, b := h.order[i], h.order[j]
	if x, y := h.all[a].at, h.all[b].at; x != y {
		return x < y
	}
	return a < b
}

func (h *heap) swap(i, j int) {
	h.order[i], h.order[j] = h.order[j], h.order[i]
	h.all[h.order[i]].pos, h.all[h.order[j]].pos = int32(i), int32(j)
}

// fix restores the order after the timer at i has changed.
func (h *heap) fix(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		next := 2*i + 1
		if next >= len(h.order) {
			return
		}
		if next+1 < len(h.order) && h.less(next+1, next) {
			next++
		}
		if !h.less(next, i) {
			return
		}
		h.swap(i, next)
		i = next
	}
}
