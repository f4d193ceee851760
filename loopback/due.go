package loopback

// arrival is a frame in flight: its buffer, sender, length and time of arrival.
type arrival struct {
	due  int64  // time of arrival on the link's clock; 0 = at once
	seq  uint64 // order among equal times
	buf  uint32
	n    uint32
	from uint32
}

func (a *arrival) before(b *arrival) bool {
	return a.due < b.due || a.due == b.due && a.seq < b.seq
}

// dueQueue is a binary heap of arrivals with the earliest first. Its user limits the number of
// entries to the capacity given to init, so it never allocates later.
type dueQueue struct {
	heap []arrival
	seq  uint64
}

func (q *dueQueue) init(capacity int) { q.heap = make([]arrival, 0, capacity) }

func (q *dueQueue) len() int { return len(q.heap) }

// next returns the time of the earliest arrival.
func (q *dueQueue) next() (int64, bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].due, true
}

func (q *dueQueue) push(a arrival) {
	q.seq++
	a.seq = q.seq
	q.heap = append(q.heap, a)
	for i := len(q.heap) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q.heap[i].before(&q.heap[parent]) {
			return
		}
		q.heap[i], q.heap[parent] = q.heap[parent], q.heap[i]
		i = parent
	}
}

// pop removes the earliest arrival. The queue must not be empty.
func (q *dueQueue) pop() arrival {
	first, last := q.heap[0], len(q.heap)-1
	q.heap[0] = q.heap[last]
	q.heap = q.heap[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			return first
		}
		if child+1 < last && q.heap[child+1].before(&q.heap[child]) {
			child++
		}
		if !q.heap[child].before(&q.heap[i]) {
			return first
		}
		q.heap[i], q.heap[child] = q.heap[child], q.heap[i]
		i = child
	}
}
