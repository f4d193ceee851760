package loopback

import "github.com/gorxe/gorxe/driver"

// maxCopies is the maximum number of duplicates of received frames at a time.
const maxCopies = 64

// receiver is the receive side of an injector with a Receive plan. It has its own tokens, because
// the inner Port may use all bits of its tokens.
type receiver struct {
	active bool
	in     [injectBatch]driver.Buf
	lent   []lent   // by token: frames in the lane or with the owner
	unused []uint32 // free tokens
	pool   [][]byte // free buffers for duplicates
	copies int      // number of buffers allocated for pool
}

// lent is a frame that the owner will release.
type lent struct {
	inner driver.Buf // the inner Port's buffer; B is nil for a duplicate
	own   []byte     // the buffer of a duplicate
}

func (r *receiver) lend(l lent) (token uint32) {
	if len(r.unused) == 0 {
		r.lent = append(r.lent, lent{})
		r.unused = append(r.unused, uint32(len(r.lent)-1))
	}
	token = r.unused[len(r.unused)-1]
	r.unused = r.unused[:len(r.unused)-1]
	r.lent[token] = l
	return token
}

func (r *receiver) copyOf(b []byte, size int) ([]byte, bool) {
	if len(r.pool) == 0 {
		if r.copies == maxCopies {
			return nil, false
		}
		r.copies++
		r.pool = append(r.pool, make([]byte, max(size, len(b))))
	}
	own := r.pool[len(r.pool)-1]
	r.pool = r.pool[:len(r.pool)-1]
	return own[:copy(own[:cap(own)], b)], true
}

// Receive implements driver.Port.
func (i *injector) Receive(bufs []driver.Buf) int {
	i.sendDue()
	if !i.active {
		n := i.Port.Receive(bufs)
		i.rx.dice.counts.Frames += uint64(n)
		return n
	}
	now := i.clock()
	for i.fetch(now, len(bufs)) {
	}
	n := 0
	for n < len(bufs) && i.rx.isDue(now) {
		bufs[n] = i.rx.first()
		n++
	}
	return n
}

// fetch moves a batch of frames from the inner Port to the lane. It returns false if there are no
// more frames, or if the lane has enough for a caller that wants this many.
func (i *injector) fetch(now int64, want int) bool {
	space := len(i.rx.free) / 2 // each frame may be duplicated
	if space == 0 {
		i.rx.dice.counts.Overflow++
		i.rx.expedite(now)
		return false
	}
	if i.rx.delayed.len() >= want && i.rx.isDue(now) {
		return false
	}
	n := i.Port.Receive(i.in[:min(space, len(i.in))])
	for _, b := range i.in[:n] {
		i.accept(b, now)
	}
	return n > 0
}

func (i *injector) accept(b driver.Buf, now int64) {
	f := i.rx.decide(b.B, now)
	if f.lost {
		i.one[0] = b
		i.Port.Release(i.one[:])
		return
	}
	i.rx.hold(driver.Buf{B: b.B, Token: uint64(i.lend(lent{inner: b}))}, max(f.due, now))
	if !f.dup {
		return
	}
	own, ok := i.copyOf(b.B, i.Port.Info().MaxFrame)
	if !ok {
		i.rx.dice.counts.Overflow++
		return
	}
	i.rx.hold(driver.Buf{B: own, Token: uint64(i.lend(lent{own: own}))}, max(f.dupDue, now))
}

// Release implements driver.Port.
func (i *injector) Release(bufs []driver.Buf) {
	if !i.active {
		i.Port.Release(bufs)
		return
	}
	for k := range bufs {
		token := uint32(bufs[k].Token)
		l := i.lent[token]
		i.lent[token] = lent{}
		i.unused = append(i.unused, token)
		if l.own != nil {
			i.pool = append(i.pool, l.own)
			continue
		}
		i.one[0] = l.inner
		i.Port.Release(i.one[:])
	}
}
