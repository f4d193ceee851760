package mr

import "sync/atomic"

// refsClosed is the value of a closed count. Later retain calls cannot make it positive.
const refsClosed = -1 << 62

// refs counts the users of an object that can be closed when it has none. It may be used from any
// goroutine.
type refs struct{ n atomic.Int64 }

// retain adds a user. It returns false if the count is closed.
func (r *refs) retain() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

// release undoes a successful retain, and reports whether there was one.
func (r *refs) release() bool { return r.n.Add(-1) >= 0 }

// close closes the count if it is 0. It returns true only once.
func (r *refs) close() bool { return r.n.CompareAndSwap(0, refsClosed) }

// users returns the current number of users.
func (r *refs) users() int { return int(max(r.n.Load(), 0)) }
