package uverbs

import (
	"context"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// engineDepth limits the work requests of a send queue that the engine has at a time. The others
// wait in the ring.
const engineDepth = 512

// queuePair is a QP. It implements qp.Source.
type queuePair struct {
	c      *Context
	handle uint32
	user   uint64
	pd     *roce.PD
	qp     *roce.QP
	inner  *qp.QP
	sendCQ *completionQueue
	recvCQ *completionQueue
	srq    *sharedQueue
	sigAll bool
	events atomic.Uint32 // asynchronous events

	maxSendSGE, maxRecvSGE, maxInline uint32

	attr   qpAttrs           // as last set; guarded by Context.mu, like groups
	groups map[roce.GID]bool // that the program has attached

	// Owner.
	sq, rq  *ring
	hot     bool   // in Device.hot
	index   int    // in Device.queues
	seen    uint32 // producer index of sq when it was scanned last
	gone    bool
	turn    uint64 // Device.turn of the counters below
	pulled  uint32 // work requests taken from sq
	flushed uint32 // receives taken from rq in state ERR
}

// qpTypes maps types (ib_uverbs_qp_type).
var qpTypes = map[uint8]roce.QPType{2: roce.RC, 3: roce.UC, 4: roce.UD}

func (c *Context) createQP(r *request) syscall.Errno {
	r.in.Skip(8)
	return c.newQP(r)
}

func (c *Context) createQPEx(r *request) syscall.Errno {
	if no := c.newQP(r); no != 0 {
		return no
	}
	r.out.U32(0, 40)
	return 0
}

func (c *Context) newQP(r *request) syscall.Errno {
	q := &queuePair{c: c, user: r.in.U64()}
	var no [4]syscall.Errno
	q.pd, no[0] = get[*roce.PD](c, r.in.U32())
	q.sendCQ, no[1] = get[*completionQueue](c, r.in.U32())
	q.recvCQ, no[2] = get[*completionQueue](c, r.in.U32())
	srq := r.in.U32()
	sendDepth, recvDepth := r.in.U32(), r.in.U32()
	sendSGE, recvSGE, inline := r.in.U32(), r.in.U32(), r.in.U32()
	q.sigAll = r.in.U8() != 0
	typ, ok := qpTypes[r.in.U8()]
	if r.in.U8() != 0 {
		q.srq, no[3] = get[*sharedQueue](c, srq)
		recvDepth, recvSGE = 0, 0
	}
	for _, n := range no {
		if n != 0 {
			return n
		}
	}
	switch {
	case !ok:
		return syscall.EOPNOTSUPP
	case sendDepth > maxQueue || recvDepth > maxQueue || sendSGE > qp.MaxSGE ||
		recvSGE > qp.MaxSGE || inline > maxInline:
		return syscall.EINVAL
	}
	// Inline data and SGEs share the memory of a slot, so the larger one determines both.
	q.maxSendSGE, q.maxRecvSGE = max(sendSGE, 1), max(recvSGE, 1)
	q.maxInline = max(inline, q.maxSendSGE*sgeSize)
	if no := q.create(typ, sendDepth, recvDepth); no != 0 {
		return no
	}
	h, e := c.add(q)
	if e != 0 {
		_ = q.destroy()
		return e
	}
	q.handle = h
	c.qps.Store(h, q)
	c.dev.mu.Lock()
	c.dev.byQP[q.qp] = q
	c.dev.mu.Unlock()
	q.attr = qpAttrs{port: 1}
	r.out.U32(h, uint32(q.qp.QPN()))
	q.putCaps(&r.out)
	r.out.U32(0)
	if q.rq != nil {
		putRing(&r.driverOut, q.rq)
	} else {
		r.driverOut.Bytes(make([]byte, 16))
	}
	putRing(&r.driverOut, q.sq)
	return 0
}

func (q *queuePair) putCaps(e *abi.Encoder) {
	recv := uint32(0)
	if q.rq != nil {
		recv = uint32(q.rq.depth())
	}
	e.U32(uint32(q.sq.depth()), recv, q.maxSendSGE, q.maxRecvSGE, q.maxInline)
}

// create creates the rings and the QP. The caller holds Context.mu.
func (q *queuePair) create(typ roce.QPType, sendDepth, recvDepth uint32) syscall.Errno {
	f := q.c.file
	var err error
	if q.sq, err = newRing(f, int(sendDepth), sqElement+int(q.maxInline)); err != nil {
		return errno(err)
	}
	if q.srq == nil {
		q.rq, err = newRing(f, int(recvDepth), rqSGEs+int(q.maxRecvSGE)*sgeSize)
		if err != nil {
			f.release(q.sq.part)
			return errno(err)
		}
	}
	conf := roce.QPConfig{Type: typ, SendCQ: q.sendCQ.cq, RecvCQ: q.recvCQ.cq,
		SendDepth: min(q.sq.depth(), engineDepth), RecvDepth: 1,
		MaxSendSGE: int(q.maxSendSGE), MaxRecvSGE: int(q.maxRecvSGE),
		MaxInline: int(q.maxInline), SignalAll: q.sigAll, AckFirst: true}
	if q.srq != nil {
		conf.SRQ = q.srq.srq
	}
	if q.qp, err = q.c.dev.dev.CreateQP(q.pd, conf); err == nil {
		q.inner = inside.QP(q.qp)
		q.c.dev.do(func() {
			q.inner.SetSource(q)
			d := q.c.dev
			q.index = len(d.queues)
			d.queues = append(d.queues, q)
		})
		if err = q.qp.Modify(&roce.Attr{State: roce.StateReset}, roce.AttrState); err != nil {
			_ = q.qp.Close()
			q.c.dev.do(q.forget)
		}
	}
	if err != nil {
		q.release()
		return errno(err)
	}
	q.sendCQ.refs++
	q.recvCQ.refs++
	if q.srq != nil {
		q.srq.refs++
	}
	return 0
}

func (q *queuePair) release() {
	q.c.file.release(q.sq.part)
	if q.rq != nil {
		q.c.file.release(q.rq.part)
	}
}

// destroy destroys the QP. The caller holds Context.mu.
func (q *queuePair) destroy() error {
	q.c.qps.Delete(q.handle)
	q.c.dev.mu.Lock()
	delete(q.c.dev.byQP, q.qp)
	q.c.dev.mu.Unlock()
	// The work requests of a destroyed QP do not complete: the program may have freed what their
	// IDs name. In RESET the engine has none, and it takes none of the rings when it ends the QP.
	q.c.dev.do(func() { q.gone = true })
	_ = q.qp.Modify(&roce.Attr{State: roce.StateReset}, roce.AttrState)
	err := q.qp.Close()
	q.c.dev.do(q.forget)
	q.c.dev.do(func() {}) // Settle has removed it from Device.hot
	q.sendCQ.refs--
	q.recvCQ.refs--
	if q.srq != nil {
		q.srq.refs--
	}
	q.release()
	return err
}

// forget ends the scans of the send queue. Owner only.
func (q *queuePair) forget() {
	d := q.c.dev
	last := len(d.queues) - 1
	d.queues[q.index] = d.queues[last]
	d.queues[q.index].index = q.index
	d.queues = slices.Delete(d.queues, last, last+1)
}

func (c *Context) destroyQP(r *request) syscall.Errno {
	r.in.Skip(8)
	h := r.in.U32()
	q, no := doomed[*queuePair](c, h)
	if no != 0 {
		return no
	}
	if len(q.groups) > 0 {
		return syscall.EBUSY
	}
	if err := q.destroy(); err != nil && !errClosed(err) {
		return errno(err)
	}
	delete(c.objects, h)
	r.out.U32(c.reported(q.events.Load(), q.user))
	return 0
}

// Bits of the attribute mask (ibv_qp_attr_mask).
const (
	maskState = 1 << iota
	maskCurState
	maskSQDNotify
	maskAccess
	maskPKeyIndex
	maskPort
	maskQKey
	maskAV
	maskPathMTU
	maskTimeout
	maskRetryCnt
	maskRNRRetry
	maskRQPSN
	maskMaxRdAtomic
	maskAltPath
	maskMinRNRTimer
	maskSQPSN
	maskMaxDestRdAtomic
	maskPathMig
	maskCap
	maskDestQPN

	maskIgnored = maskCurState | maskSQDNotify | maskPort | maskPathMig
	maskKnown   = 1<<21 - 1 - maskAltPath - maskCap
)

// qpAccess are the access flags that have an effect on a QP. Programs set others as well, such as
// those of their memory regions; like the kernel, gorxe ignores them and returns them.
const qpAccess = roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic | roce.FlushGlobal |
	roce.FlushPersistent

// qpAttrs are the attributes of MODIFY_QP and QUERY_QP.
type qpAttrs struct {
	dest                                        route
	qkey, rqPSN, sqPSN, destQPN, access         uint32
	pkeyIndex                                   uint16
	state, curState, pathMTU, migState          uint8
	sqdNotify, maxRdAtomic, maxDestRdAtomic     uint8
	minRNRTimer, port, timeout, retry, rnrRetry uint8
}

// readModify reads a struct ib_uverbs_modify_qp.
func readModify(d *abi.Decoder) (handle, mask uint32, a qpAttrs) {
	a.dest = readDest(d)
	readDest(d) // alternate path
	handle, mask = d.U32(), d.U32()
	a.qkey, a.rqPSN, a.sqPSN, a.destQPN, a.access = d.U32(), d.U32(), d.U32(), d.U32(), d.U32()
	a.pkeyIndex = d.U16()
	d.Skip(2)
	a.state, a.curState, a.pathMTU, a.migState = d.U8(), d.U8(), d.U8(), d.U8()
	a.sqdNotify, a.maxRdAtomic, a.maxDestRdAtomic = d.U8(), d.U8(), d.U8()
	a.minRNRTimer, a.port, a.timeout = d.U8(), d.U8(), d.U8()
	a.retry, a.rnrRetry = d.U8(), d.U8()
	return handle, mask, a
}

// readDest reads a struct ib_uverbs_qp_dest.
func readDest(d *abi.Decoder) (p route) {
	copy(p.dgid[:], d.Bytes(16))
	p.flowLabel = d.U32()
	d.Skip(4) // LID
	p.gidIndex, p.hopLimit, p.trafficClass, p.sl = d.U8(), d.U8(), d.U8(), d.U8()
	d.Skip(2)
	p.global, p.port = d.U8(), d.U8()
	return p
}

// putDest writes a struct ib_uverbs_qp_dest.
func (p *route) putDest(e *abi.Encoder) {
	e.Bytes(p.dgid[:])
	e.U32(p.flowLabel, 0)
	e.U8(p.gidIndex, p.hopLimit, p.trafficClass, p.sl, 0, 0, 1, 1)
}

func (c *Context) modifyQP(r *request) syscall.Errno {
	handle, mask, a := readModify(&r.in)
	o, ok := c.qps.Load(handle)
	if !ok || mask&^maskKnown != 0 || mask&maskPort != 0 && a.port != 1 ||
		mask&maskAV != 0 && !a.dest.valid() {
		return syscall.EINVAL
	}
	q := o.(*queuePair)
	from := roce.State(q.inner.State())
	if mask&maskCurState != 0 && roce.State(a.curState) != from ||
		!permitted(q.inner.Type(), from, roce.State(a.state), mask) {
		return syscall.EINVAL
	}
	m := roce.Attr{State: roce.State(a.state), QKey: roce.QKey(a.qkey),
		RQPSN: roce.PSN(a.rqPSN & 0xffffff), SQPSN: roce.PSN(a.sqPSN & 0xffffff),
		DestQPN: roce.QPN(a.destQPN & 0xffffff), Access: roce.Access(a.access) & qpAccess,
		MaxRdAtomic: a.maxRdAtomic, MaxDestRdAtomic: a.maxDestRdAtomic,
		MinRNRTimer: a.minRNRTimer, Timeout: a.timeout, RetryCnt: a.retry, RNRRetry: a.rnrRetry}
	if mask&maskPathMTU != 0 {
		if a.pathMTU < 1 || a.pathMTU > 5 {
			return syscall.EINVAL
		}
		m.PathMTU = roce.MTU(128 << a.pathMTU)
	}
	if mask&maskPKeyIndex != 0 {
		keys := c.dev.dev.PKeys()
		if int(a.pkeyIndex) >= len(keys) {
			return syscall.EINVAL
		}
		m.PKey = keys[a.pkeyIndex]
	}
	if mask&maskAV != 0 && q.inner.Type() != qp.UD {
		a.dest.setHopLimit()
		if no := q.resolve(&m, &a, mask); no != 0 {
			return no
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return syscall.EIO
	}
	if mask&maskState != 0 && m.State == roce.StateReset {
		no := q.reset()
		c.setDoorbells(r.call)
		return no
	}
	if err := q.qp.Modify(&m, engineMask(mask)); err != nil {
		return errno(err)
	}
	if c.mute {
		c.setDoorbells(r.call)
	}
	c.dev.do(func() {}) // makes completions of a flush visible
	q.attr.merge(&a, mask)
	return 0
}

// resolve finds the path to the peer of a connected QP. It may wait for a neighbor lookup.
func (q *queuePair) resolve(m *roce.Attr, a *qpAttrs, mask uint32) syscall.Errno {
	ctx, cancel := context.WithTimeout(context.Background(), resolveTimeout)
	defer cancel()
	o := a.dest.options()
	if mask&maskDestQPN != 0 {
		o.SourcePort = frame.SourcePort(bth.QPN(q.qp.QPN()), bth.QPN(m.DestQPN))
	}
	path, _, err := q.c.dev.dev.ResolvePath(ctx, int(a.dest.gidIndex), a.dest.dgid, o)
	if err != nil {
		return errno(err)
	}
	m.Path = *path
	return 0
}

// reset moves the QP to RESET and empties its rings. The caller holds Context.mu.
func (q *queuePair) reset() syscall.Errno {
	if err := q.qp.Modify(&roce.Attr{State: roce.StateReset}, roce.AttrState); err != nil {
		return errno(err)
	}
	q.c.dev.do(func() {
		q.sq.reset()
		q.seen = 0
		if q.rq != nil {
			q.rq.reset()
		}
	})
	q.attr = qpAttrs{port: 1}
	return 0
}

// engineMasks maps the attributes of libibverbs to those of package roce.
var engineMasks = map[uint32]roce.AttrMask{maskState: roce.AttrState, maskAccess: roce.AttrAccess,
	maskPKeyIndex: roce.AttrPKey, maskQKey: roce.AttrQKey, maskAV: roce.AttrPath,
	maskPathMTU: roce.AttrPathMTU, maskTimeout: roce.AttrTimeout, maskRetryCnt: roce.AttrRetryCnt,
	maskRNRRetry: roce.AttrRNRRetry, maskRQPSN: roce.AttrRQPSN, maskSQPSN: roce.AttrSQPSN,
	maskMaxRdAtomic: roce.AttrMaxRdAtomic, maskMinRNRTimer: roce.AttrMinRNRTimer,
	maskMaxDestRdAtomic: roce.AttrMaxDestRdAtomic, maskDestQPN: roce.AttrDestQPN}

func engineMask(mask uint32) (m roce.AttrMask) {
	for bit, to := range engineMasks {
		if mask&bit != 0 {
			m |= to
		}
	}
	return m
}

// merge sets the attributes that mask selects.
func (q *qpAttrs) merge(a *qpAttrs, mask uint32) {
	set := func(bit uint32, f func()) {
		if mask&bit != 0 {
			f()
		}
	}
	set(maskAV, func() { q.dest = a.dest })
	set(maskQKey, func() { q.qkey = a.qkey })
	set(maskRQPSN, func() { q.rqPSN = a.rqPSN })
	set(maskSQPSN, func() { q.sqPSN = a.sqPSN })
	set(maskDestQPN, func() { q.destQPN = a.destQPN })
	set(maskAccess, func() { q.access = a.access })
	set(maskPKeyIndex, func() { q.pkeyIndex = a.pkeyIndex })
	set(maskPathMTU, func() { q.pathMTU = a.pathMTU })
	set(maskPathMig, func() { q.migState = a.migState })
	set(maskMaxRdAtomic, func() { q.maxRdAtomic = a.maxRdAtomic })
	set(maskMaxDestRdAtomic, func() { q.maxDestRdAtomic = a.maxDestRdAtomic })
	set(maskMinRNRTimer, func() { q.minRNRTimer = a.minRNRTimer })
	set(maskTimeout, func() { q.timeout = a.timeout })
	set(maskRetryCnt, func() { q.retry = a.retry })
	set(maskRNRRetry, func() { q.rnrRetry = a.rnrRetry })
}

func (c *Context) queryQP(r *request) syscall.Errno {
	r.in.Skip(8)
	q, no := get[*queuePair](c, r.in.U32())
	if no != 0 {
		return no
	}
	a, e := &q.attr, &r.out
	state := uint8(q.inner.State())
	a.dest.putDest(e)
	e.Bytes(make([]byte, 32))
	q.putCaps(e)
	e.U32(a.qkey, a.rqPSN, a.sqPSN, a.destQPN, a.access)
	e.U16(a.pkeyIndex)
	e.U16(0)
	sigAll := uint8(0)
	if q.sigAll {
		sigAll = 1
	}
	e.U8(state, state, a.pathMTU, a.migState, 0, a.maxRdAtomic, a.maxDestRdAtomic, a.minRNRTimer,
		a.port, a.timeout, a.retry, a.rnrRetry, 0, 0, sigAll, 0, 0, 0, 0, 0)
	return 0
}

// mcast reads the QP and the group of ATTACH_MCAST and DETACH_MCAST.
func (c *Context) mcast(r *request) (*queuePair, roce.GID, syscall.Errno) {
	var g roce.GID
	copy(g[:], r.in.Bytes(16))
	q, no := get[*queuePair](c, r.in.U32())
	return q, g, no
}

func (c *Context) attachMcast(r *request) syscall.Errno {
	q, g, no := c.mcast(r)
	if no != 0 {
		return no
	}
	if err := q.qp.AttachMulticast(g.Addr()); err != nil {
		return errno(err)
	}
	if q.groups == nil {
		q.groups = map[roce.GID]bool{}
	}
	q.groups[g] = true
	return 0
}

func (c *Context) detachMcast(r *request) syscall.Errno {
	q, g, no := c.mcast(r)
	if no != 0 {
		return no
	}
	if err := q.qp.DetachMulticast(g.Addr()); err != nil {
		return errno(err)
	}
	delete(q.groups, g)
	return 0
}
