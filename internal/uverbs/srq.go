package uverbs

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// Layout of a receive work request (struct rxe_recv_wqe).
const (
	rqID     = 0
	rqNumSGE = 28
	rqSGEs   = 40
	sgeSize  = 16
)

// takeRecv reads the next receive of a ring. Owner only.
func takeRecv(r *ring, wr *qp.RecvWR) bool {
	if r.waiting() == 0 {
		return false
	}
	b := r.slot(r.index)
	wr.ID = binary.LittleEndian.Uint64(b[rqID:])
	n := min(int(binary.LittleEndian.Uint32(b[rqNumSGE:])), cap(wr.SGEs), (len(b)-rqSGEs)/sgeSize)
	for i := range n {
		wr.SGEs = append(wr.SGEs, readSGE(b[rqSGEs+i*sgeSize:]))
	}
	r.index = (r.index + 1) & r.mask
	r.setConsumer(r.index)
	return true
}

func readSGE(b []byte) qp.SGE {
	le := binary.LittleEndian
	return qp.SGE{Addr: le.Uint64(b), Length: le.Uint32(b[8:]), LKey: bth.LKey(le.Uint32(b[12:]))}
}

// sharedQueue is an SRQ. It implements qp.Source.
type sharedQueue struct {
	c      *Context
	user   uint64
	srq    *roce.SRQ
	pd     *roce.PD
	maxSGE uint32
	number uint32
	limit  atomic.Uint32
	events atomic.Uint32
	refs   int // QPs; guarded by Context.mu

	ring *ring // owner
}

// Sends implements qp.Source.
func (q *sharedQueue) Sends() bool { return false }

// Recv implements qp.Source.
func (q *sharedQueue) Recv(wr *qp.RecvWR) bool {
	if !takeRecv(q.ring, wr) {
		return false
	}
	if l := q.limit.Load(); l > 0 && q.ring.waiting() < l && q.limit.CompareAndSwap(l, 0) {
		if q.c.event(q.user, eventSRQLimit) {
			q.events.Add(1)
		}
	}
	return true
}

func (c *Context) createSRQ(r *request) syscall.Errno {
	r.in.Skip(8)
	user, pd := r.in.U64(), r.in.U32()
	return c.newSRQ(r, user, pd)
}

// createXSRQ creates a basic SRQ; others are not supported.
func (c *Context) createXSRQ(r *request) syscall.Errno {
	r.in.Skip(8)
	user, kind, pd := r.in.U64(), r.in.U32(), r.in.U32()
	if kind != 0 {
		return syscall.EOPNOTSUPP
	}
	return c.newSRQ(r, user, pd)
}

func (c *Context) newSRQ(r *request, user uint64, pdHandle uint32) syscall.Errno {
	depth, sges, limit := r.in.U32(), r.in.U32(), r.in.U32()
	pd, no := get[*roce.PD](c, pdHandle)
	switch {
	case no != 0:
		return no
	case depth < 1 || depth > maxQueue || sges > qp.MaxSGE || limit > depth:
		return syscall.EINVAL
	}
	sges = max(sges, 1)
	q := &sharedQueue{c: c, user: user, pd: pd, maxSGE: sges}
	q.limit.Store(limit)
	var err error
	if q.ring, err = newRing(c.file, int(depth), rqSGEs+int(sges)*sgeSize); err != nil {
		return errno(err)
	}
	// The receives are in the ring, so the engine's queue is as small as possible.
	q.srq, err = c.dev.dev.CreateSRQ(pd, roce.SRQConfig{Depth: 1, MaxSGE: int(sges)})
	if err != nil {
		c.file.release(q.ring.part)
		return errno(err)
	}
	c.dev.do(func() { inside.SRQ(q.srq).SetSource(q) })
	h, no := c.add(q)
	if no != 0 {
		_ = q.destroy()
		return no
	}
	q.number = h
	r.out.U32(h, uint32(q.ring.depth()), sges, h)
	putRing(&r.driverOut, q.ring)
	r.driverOut.U32(h, 0)
	return 0
}

// Bits of MODIFY_SRQ.
const (
	srqMaxWR = 1 << 0
	srqLimit = 1 << 1
)

func (c *Context) modifySRQ(r *request) syscall.Errno {
	q, no := get[*sharedQueue](c, r.in.U32())
	if no != 0 {
		return no
	}
	mask, depth, limit := r.in.U32(), r.in.U32(), r.in.U32()
	if mask&^(srqMaxWR|srqLimit) != 0 || mask == 0 {
		return syscall.EINVAL
	}
	if mask&srqMaxWR == 0 {
		depth = uint32(q.ring.depth())
	}
	if mask&srqLimit == 0 {
		limit = q.limit.Load()
	}
	if depth < 1 || depth > maxQueue || limit > depth {
		return syscall.EINVAL
	}
	if mask&srqMaxWR != 0 {
		if no := q.resize(r, int(depth)); no != 0 {
			return no
		}
	}
	if mask&srqLimit != 0 {
		q.limit.Store(limit)
	}
	return 0
}

// resize moves the receives to a ring of another size. The provider passes the address where it
// expects the struct mminfo of the new ring.
func (q *sharedQueue) resize(r *request, depth int) syscall.Errno {
	if len(r.driver.B) < 8 {
		return syscall.EINVAL
	}
	f := q.c.file
	next, err := newRing(f, depth, rqSGEs+int(q.maxSGE)*sgeSize)
	if err != nil {
		return errno(err)
	}
	var info abi.Encoder
	putRing(&info, next)
	if r.call.WriteAt(info.B, r.driver.U64()) != nil {
		f.release(next.part)
		return syscall.EFAULT
	}
	old, moved := q.ring, false
	q.c.dev.do(func() {
		if moved = old.moveWaiting(next); moved {
			q.ring = next
		}
	})
	if !moved {
		f.release(next.part)
		return syscall.EINVAL
	}
	f.release(old.part)
	return 0
}

func (c *Context) querySRQ(r *request) syscall.Errno {
	r.in.Skip(8)
	q, no := get[*sharedQueue](c, r.in.U32())
	if no != 0 {
		return no
	}
	r.out.U32(uint32(q.ring.depth()), q.maxSGE, q.limit.Load(), 0)
	return 0
}

func (c *Context) destroySRQ(r *request) syscall.Errno {
	r.in.Skip(8)
	h := r.in.U32()
	q, no := doomed[*sharedQueue](c, h)
	if no != 0 {
		return no
	}
	if q.refs > 0 {
		return syscall.EBUSY
	}
	if err := q.destroy(); err != nil {
		return errno(err)
	}
	delete(c.objects, h)
	r.out.U32(c.reported(q.events.Load(), q.user))
	return 0
}

// destroy destroys the SRQ. The caller holds Context.mu.
func (q *sharedQueue) destroy() error {
	if err := q.srq.Close(); err != nil {
		return err
	}
	q.c.dev.do(func() {})
	q.c.file.release(q.ring.part)
	return nil
}
