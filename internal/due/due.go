package due

// Item is an entry of a Queue, usually a pointer to a struct.
type Item interface {
	// Due returns the time at which the item is due. If it changes, the caller must call Set.
	Due() int64
	// Slot returns a variable of the item that only the Queue uses. It must be 0 at first.
	Slot() *int
}

// Queue is a binary heap. The zero Queue is empty. An item can be in one Queue at a time.
type Queue[T Item] struct {
	heap []T // the variable of an item is its index + 1, or 0 if it is not in the queue
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return len(q.heap) }

// First returns the item that is due first. The queue must not be empty.
func (q *Queue[T]) First() T { return q.heap[0] }

// Set adds x, or moves it after its time has changed.
func (q *Queue[T]) Set(x T) {
	if *x.Slot() == 0 {
		q.heap = append(q.heap, x)
		*x.Slot() = len(q.heap)
	}
	q.fix(*x.Slot() - 1)
}

// Remove removes x if it is in the queue.
func (q *Queue[T]) Remove(x T) {
	i, last := *x.Slot()-1, len(q.heap)-1
	if i < 0 {
		return
	}
	q.swap(i, last)
	var none T
	q.heap[last] = none
	q.heap = q.heap[:last]
	*x.Slot() = 0
	if i < last {
		q.fix(i)
	}
}

// fix moves the item at index i, whose time may have changed, to its place.
func (q *Queue[T]) fix(i int) {
	for i > 0 && q.less(i, (i-1)/2) {
		q.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		child := 2*i + 1
		if child+1 < len(q.heap) && q.less(child+1, child) {
			child++
		}
		if child >= len(q.heap) || !q.less(child, i) {
			return
		}
		q.swap(i, child)
		i = child
	}
}

func (q *Queue[T]) less(i, j int) bool { return q.heap[i].Due() < q.heap[j].Due() }

func (q *Queue[T]) swap(i, j int) {
	q.heap[i], q.heap[j] = q.heap[j], q.heap[i]
	*q.heap[i].Slot(), *q.heap[j].Slot() = i+1, j+1
}
