package core

import "math/bits"

// pool is a set of queues, one for each priority, and the work in progress.
type pool struct {
	capacity, load int
	link           bool                 // see Machine.AddLink
	loads          [MaxPriority + 1]int // load by priority
	busy           uint64               // priorities that have load
	used           uint64               // priorities whose queue is not empty
	queues         [MaxPriority + 1]queue
}

// queue is a list of tasks. Each task is in at most one queue.
type queue struct{ head, tail TaskID }

const none TaskID = -1

func newPool(capacity int, link bool) pool {
	p := pool{capacity: capacity, link: link}
	for i := range p.queues {
		p.queues[i] = queue{none, none}
	}
	return p
}

// queue adds a task to its pool, in front of its equals or behind them.
func (m *Machine) queue(id TaskID, front bool) {
	t := &m.tasks[id]
	p := &m.pools[t.pool]
	q := &p.queues[t.priority]
	p.used |= 1 << t.priority
	switch {
	case q.head == none:
		t.next, q.head, q.tail = none, id, id
	case front:
		t.next, q.head = q.head, id
	default:
		t.next = none
		m.tasks[q.tail].next = id
		q.tail = id
	}
}

// runnable reports whether the first task of the highest priority may run now.
func (m *Machine) runnable(p *pool) bool {
	if p.used == 0 || p.load >= p.capacity {
		return false
	}
	if !p.link || p.load == 0 {
		return true
	}
	priority := bits.Len64(p.used) - 1
	return priority >= bits.Len64(p.busy) || m.tasks[p.queues[priority].head].units == p.load
}

// begin and end count a unit of work of a task.
func (p *pool) begin(t *task) {
	p.load++
	p.loads[t.priority]++
	p.busy |= 1 << t.priority
	t.units++
}

func (p *pool) end(t *task) {
	p.load--
	t.units--
	if p.loads[t.priority]--; p.loads[t.priority] == 0 {
		p.busy &^= 1 << t.priority
	}
}

// dequeue removes the first task of the highest priority. There is one.
func (m *Machine) dequeue(p *pool) TaskID {
	priority := bits.Len64(p.used) - 1
	q := &p.queues[priority]
	id := q.head
	if q.head = m.tasks[id].next; q.head == none {
		q.tail = none
		p.used &^= 1 << priority
	}
	return id
}

// unqueue removes a task from the middle of its queue.
func (m *Machine) unqueue(id TaskID) {
	t := &m.tasks[id]
	p := &m.pools[t.pool]
	q := &p.queues[t.priority]
	before := none
	for at := q.head; at != id; at = m.tasks[at].next {
		before = at
	}
	if before == none {
		q.head = t.next
	} else {
		m.tasks[before].next = t.next
	}
	if q.tail == id {
		q.tail = before
	}
	if q.head == none {
		p.used &^= 1 << t.priority
	}
}
