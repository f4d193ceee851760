package mr

import "sync/atomic"

// refsClosed is added to a count that was closed; it is negative from then on,
// whatever late retain calls do.
const refsClosed = -1 << 62

// refs counts the users of something that may be closed when it has none. Any
// thread.
type refs struct{ n atomic.Int64 }

// retain notes a user, unless the count is closed.
func (r *refs) retain() bool {
	if r.n.Add(1) > 0 {
		return true
	}
	r.n.Add(-1)
	return false
}

// release takes back a retain that succeeded, and reports whether there was
// one.
func (r *refs) release() bool { return r.n.Add(-1) >= 0 }

// close ends the count if nobody uses it: true for one caller at most.
func (r *refs) close() bool { return r.n.CompareAndSwap(0, refsClosed) }

// users is their number at this moment.
func (r *refs) users() int { return int(max(r.n.Load(), 0)) }
