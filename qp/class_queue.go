package qp

import "github.com/gorxe/gorxe/qp/sched"

// classQueue holds the QPs of a class that have packets to send, while traffic classes are in use.
type classQueue struct {
	// ring is for RoundRobin, nil until the first QP. That of class 0 is Engine.runq.
	ring    *sched.Queue[*QP]
	heap    qpHeap // for FIFO
	serving *QP    // the QP whose turn it is, also while it is preempted; not in ring. FIFO: unused
	left    uint32 // bytes of its quantum
	part    uint64 // bytes of payload since the last preemption point
	bucket  bucket
	resume  Time // when bucket has enough tokens; valid while the class is in Engine.throttled
}

// classState is what a QP needs beside its class if it has a rate or is in a FIFO class.
type classState struct {
	bucket bucket
	stamp  uint64 // of the newest work request that was started; FIFO only

	// A QP is in one heap at most: that of its class, or Engine.limited.
	heap *qpHeap
	at   int    // index in heap
	key  uint64 // of heap: a stamp, or the Time at which the QP has tokens
}

// qpHeap is a binary heap of QPs. The one with the smallest key is at index 0.
type qpHeap struct{ qps []*QP }

func (h *qpHeap) less(i, j int) bool { return h.qps[i].cs.key < h.qps[j].cs.key }

func (h *qpHeap) swap(i, j int) {
	h.qps[i], h.qps[j] = h.qps[j], h.qps[i]
	h.qps[i].cs.at, h.qps[j].cs.at = i, j
}

// put inserts q, or changes its key if it is in the heap.
func (h *qpHeap) put(q *QP, key uint64) {
	cs := q.cs
	if cs.heap != h {
		cs.heap, cs.at = h, len(h.qps)
		h.qps = append(h.qps, q)
	}
	cs.key = key
	h.fix(cs.at)
}

// fix restores the order after the key at index i has changed.
func (h *qpHeap) fix(i int) {
	for i > 0 && h.less(i, (i-1)/2) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child >= len(h.qps) {
			return
		}
		if child+1 < len(h.qps) && h.less(child+1, child) {
			child++
		}
		if !h.less(child, i) {
			return
		}
		h.swap(child, i)
		i = child
	}
}

// remove takes q out of the heap.
func (h *qpHeap) remove(q *QP) {
	i, last := q.cs.at, len(h.qps)-1
	h.swap(i, last)
	h.qps[last] = nil
	h.qps = h.qps[:last]
	q.cs.heap = nil
	if i < last {
		h.fix(i)
	}
}

// empty reports whether no QP waits. It may be false although none has packets: see Engine.next.
func (c *classQueue) empty() bool {
	return c.serving == nil && len(c.heap.qps) == 0 && (c.ring == nil || c.ring.Len() == 0)
}

// grow gives the ring of a class other than 0 space for n QPs.
func (c *classQueue) grow(n int) {
	old := c.ring
	if old != nil && n <= old.Cap() {
		return
	}
	c.ring, _ = sched.New[*QP](max(n, minRunq), 0) // n is in range
	for old != nil {
		q, ok := old.Pop()
		if !ok {
			return
		}
		c.ring.Push(q)
	}
}

// admit adds a QP that may send to its class.
func (e *Engine) admit(q *QP) {
	c := q.Class()
	cq := &e.queues[c]
	e.ready |= 1 << c
	switch {
	case e.config[c].Order == FIFO:
		key, _ := q.nextStamp()
		cq.heap.put(q, key)
	case q != cq.serving && !q.queued:
		q.queued = true
		cq.ring.Push(q)
	}
}

// first returns the QP of class c that is served next, or nil.
func (e *Engine) first(c uint8) *QP {
	cq := &e.queues[c]
	if e.config[c].Order == FIFO {
		for len(cq.heap.qps) > 0 {
			q := cq.heap.qps[0]
			if q.list == inRunq {
				return q
			}
			cq.heap.remove(q)
		}
		return nil
	}
	if q := cq.serving; q != nil && q.list == inRunq {
		return q
	}
	cq.serving = nil
	for {
		q, ok := cq.ring.Pop()
		if !ok {
			return nil
		}
		if c == 0 {
			e.prefetchNext()
		}
		q.queued = false
		if q.list == inRunq {
			cq.serving, cq.left = q, quantum
			return q
		}
		e.releaseRunqSlot(q)
	}
}

// expel takes a QP out of its class's queue and off Engine.limited.
func (e *Engine) expel(q *QP) {
	cq := &e.queues[q.Class()]
	if q.cs != nil && q.cs.heap != nil {
		q.cs.heap.remove(q)
	}
	if q.queued {
		q.queued = false
		cq.ring.Remove(q)
	}
	if cq.serving == q {
		cq.serving = nil
	}
	if e.serving == q {
		e.serving = nil
	}
	e.forget(q)
}

// forget ends a part between two preemption points, and what Engine.last records.
func (e *Engine) forget(q *QP) {
	if e.holding == q {
		e.holding = nil
		e.queues[q.Class()].part = 0
	}
	if e.last == q {
		e.last = nil
	}
}

// stampBase distinguishes stamps from the packet counts in the same field of a WQE.
const stampBase = 1 << 63

// newStamp returns a number that is larger than all before. It may be called from any goroutine.
func (e *Engine) newStamp() uint64 { return stampBase | e.stamps.Add(1) }

// stampWQEs stamps the WQEs from counter from up to to, which the engine has not started.
func (q *QP) stampWQEs(from, to uint32) {
	for i := from; i != to; i++ {
		q.sq.at(i).psn = q.eng.newStamp()
	}
}

// answerStamp returns the stamp of an answer that is queued now; 0 if the class needs none.
func (q *QP) answerStamp() uint64 {
	if q.state.Load()&stamped == 0 {
		return 0
	}
	return q.eng.newStamp()
}

// nextStamp returns the stamp of what the QP sends next in a FIFO class: 0 for ACKs, NAKs and CNPs,
// that of the request for a READ response, that of the post for a work request. starts reports
// whether it belongs to a work request that is not started.
func (q *QP) nextStamp() (stamp uint64, starts bool) {
	s := &q.sq
	switch {
	case q.owesControl():
		return 0, false
	case q.owes && !q.answers.empty():
		return q.answers.list[q.answers.first].stamp, false
	case q.resending():
		return q.cs.stamp, false // of the newest that was started, which is older than others
	}
	for i, head := s.cur, s.head.Load(); i != head; i++ {
		w := s.at(i)
		switch {
		case int32(i-s.started) < 0 && !w.op.local():
			return q.cs.stamp, false
		case int32(i-s.started) >= 0 && (!w.op.local() || i+1 == head):
			if w.psn < stampBase { // posted while the class was changed
				w.psn = q.eng.newStamp()
			}
			return w.psn, true
		}
	}
	return q.cs.stamp, false
}
