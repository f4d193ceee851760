package uverbs

import (
	"encoding/binary"
	"sync/atomic"
	"syscall"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// Layout of a completion (ib_uverbs_wc).
const (
	wcID     = 0
	wcStatus = 8
	wcOpcode = 12
	wcLen    = 20
	wcExtra  = 24 // immediate (big endian), or the key that was invalidated
	wcQPN    = 28
	wcSrcQP  = 32
	wcFlags  = 36
	wcSL     = 44
	wcPort   = 46
	wcSize   = 48

	wcFlagGRH, wcFlagImm, wcFlagInv = 1, 2, 8

	// The network header of a received datagram, in the field for the service level, as NICs of the
	// driver mlx5 report it. UCX looks at it, whatever the driver: without it, it drops datagrams
	// over IPv4.
	slUDP, slIPv4, slIPv6 = 1 << 3, slUDP | 2, slUDP | 1
)

// wcOpcodes maps opcodes of completions to those of libibverbs.
var wcOpcodes = [...]uint32{qp.WCSend: 0, qp.WCWrite: 1, qp.WCRead: 2, qp.WCCmpSwap: 3,
	qp.WCFetchAdd: 4, qp.WCRecv: 128, qp.WCRecvWriteImm: 129, qp.WCFlush: 8, qp.WCAtomicWrite: 9,
	qp.WCBindMW: 5, qp.WCLocalInv: 6, qp.WCRegMR: 0}

// wcStatuses maps statuses to those of libibverbs.
var wcStatuses = [...]uint32{qp.Success: 0, qp.LocLenErr: 1, qp.LocQPOpErr: 2, qp.LocProtErr: 4,
	qp.WRFlushErr: 5, qp.MWBindErr: 6, qp.BadRespErr: 7, qp.LocAccessErr: 8, qp.RemInvReqErr: 9,
	qp.RemAccessErr: 10, qp.RemOpErr: 11, qp.RetryExcErr: 12, qp.RNRRetryExcErr: 13,
	qp.RemAbortErr: 16, qp.FatalErr: 19, qp.GeneralErr: 21}

// What a program waits for on a CQ.
const (
	notifyNone = iota
	notifySolicited
	notifyAny
)

// completionQueue is a CQ. The owner moves completions from the engine's queue to the ring.
type completionQueue struct {
	c       *Context
	user    uint64
	cq      *roce.CQ
	inner   *qp.CQ
	channel *channel // nil: none
	notify  atomic.Uint32
	events  atomic.Uint32 // sent to the channel
	refs    int           // QPs; guarded by Context.mu

	ring    *ring // owner, like the others below
	full    bool  // the ring had no space for a completion
	overrun bool  // completions are lost, which was reported
	gone    bool
}

func (c *Context) createChannel(r *request) syscall.Errno {
	if len(c.chans) >= maxChannels {
		return syscall.EMFILE
	}
	ch, err := newChannel()
	if err != nil {
		return errno(err)
	}
	n, err := r.call.Install(ch.read, true)
	if err != nil {
		ch.close()
		return errno(err)
	}
	if c.chans == nil {
		c.chans = map[int]*channel{}
	}
	if old := c.chans[n]; old != nil {
		old.close() // the program has closed this number
	}
	c.chans[n] = ch
	r.out.U32(uint32(n))
	return 0
}

func (c *Context) createCQ(r *request) syscall.Errno {
	r.in.Skip(8)
	return c.newCQ(r)
}

func (c *Context) createCQEx(r *request) syscall.Errno {
	d := r.in
	d.Skip(20)
	switch compMask, flags := d.U32(), d.U32(); {
	case compMask != 0:
		return syscall.EINVAL
	case flags != 0: // time stamps, and CQs that are never full
		return syscall.EOPNOTSUPP
	}
	if no := c.newCQ(r); no != 0 {
		return no
	}
	r.out.U32(0, 16)
	return 0
}

func (c *Context) newCQ(r *request) syscall.Errno {
	q := &completionQueue{c: c, user: r.in.U64()}
	depth := r.in.U32()
	vector, channel := r.in.U32(), int32(r.in.U32())
	switch {
	case depth < 1 || depth > maxCQEs, vector >= vectors:
		return syscall.EINVAL
	case channel >= 0:
		if q.channel = c.chans[int(channel)]; q.channel == nil {
			return syscall.EBADF
		}
	}
	var err error
	if q.ring, err = newRing(c.file, int(depth), wcSize); err != nil {
		return errno(err)
	}
	if q.cq, err = c.dev.dev.CreateCQ(q.ring.depth()); err != nil {
		c.file.release(q.ring.part)
		return errno(err)
	}
	q.inner = inside.CQ(q.cq)
	h, no := c.add(q)
	if no != 0 {
		_ = q.destroy()
		return no
	}
	c.dev.do(func() {
		q.inner.SetNotify(q.completed)
		q.inner.Arm(false)
	})
	r.out.U32(h, uint32(q.ring.depth()))
	putRing(&r.driverOut, q.ring)
	return 0
}

// putRing writes a struct mminfo: where the program maps a ring.
func putRing(e *abi.Encoder, r *ring) {
	e.U64(uint64(r.part.off))
	e.U32(r.size(), 0)
}

// completed is called by the engine for a completion after the CQ was armed. Owner only.
func (q *completionQueue) completed() { q.c.dev.pending = append(q.c.dev.pending, q) }

// drain moves completions to the ring. Owner only.
func (q *completionQueue) drain() {
	if q.gone {
		return
	}
	wcs := q.c.dev.wcs[:]
	q.inner.Arm(false)
	for {
		n := q.inner.Poll(wcs)
		for i := range wcs[:n] {
			q.publish(&wcs[i])
		}
		if n < len(wcs) {
			break
		}
	}
	q.checkFull()
}

// publish writes a completion to the ring, and sends the event if the program waits for it.
func (q *completionQueue) publish(wc *qp.WC) {
	if q.ring.full() {
		q.full = true // see checkFull
		return
	}
	b := q.ring.slot(q.ring.index)
	le := binary.LittleEndian
	clear(b[:wcSize])
	le.PutUint64(b[wcID:], wc.ID)
	le.PutUint32(b[wcStatus:], wcStatuses[wc.Status])
	le.PutUint32(b[wcOpcode:], wcOpcodes[wc.Opcode])
	le.PutUint32(b[wcLen:], wc.ByteLen)
	le.PutUint32(b[wcQPN:], uint32(wc.QPN))
	le.PutUint32(b[wcSrcQP:], uint32(wc.SrcQP))
	flags := uint32(0)
	if wc.Flags&qp.WCGRH != 0 {
		flags |= wcFlagGRH
		b[wcSL] = slIPv6
		if wc.Flags&qp.WCIPv4 != 0 {
			b[wcSL] = slIPv4
		}
	}
	if wc.Flags&qp.WCWithImm != 0 {
		flags |= wcFlagImm
		binary.BigEndian.PutUint32(b[wcExtra:], wc.Imm)
	}
	if wc.Flags&qp.WCWithInv != 0 {
		flags |= wcFlagInv
		le.PutUint32(b[wcExtra:], uint32(wc.InvKey))
	}
	le.PutUint32(b[wcFlags:], flags)
	b[wcPort] = 1
	// A program that sees the completion may request the next event at once, so a request that it
	// answers is taken before. A program that does not see it may just have made its request.
	requested := q.takeRequest(wc)
	q.ring.produced()
	if requested || q.takeRequest(wc) {
		q.notifyProgram()
	}
}

// takeRequest ends the program's request for an event and returns true, if wc answers it.
func (q *completionQueue) takeRequest(wc *qp.WC) bool {
	n := q.notify.Load()
	answers := n == notifyAny ||
		n == notifySolicited && (wc.Flags&qp.WCSolicited != 0 || wc.Status != qp.Success)
	return answers && q.notify.CompareAndSwap(n, notifyNone)
}

// notifyProgram sends an event to the program.
func (q *completionQueue) notifyProgram() {
	if q.channel == nil {
		return
	}
	if q.channel.send(binary.LittleEndian.AppendUint64(nil, q.user)) {
		q.events.Add(1)
	}
}

// checkFull reports once that completions are lost. The QPs of the CQ go to ERR (IBA 10.2.2.3),
// whether the ring or the engine's queue was full. That completes work requests, so it must not be
// called while completions are moved.
func (q *completionQueue) checkFull() {
	if q.overrun || !q.full && !q.inner.Overrun() {
		return
	}
	q.overrun = true
	q.c.event(q.user, eventCQErr)
	for _, p := range q.c.dev.queues {
		if p.sendCQ != q && p.recvCQ != q || p.gone {
			continue
		}
		switch p.inner.State() {
		case qp.Reset, qp.Err:
			continue
		}
		if p.inner.Modify(0, &qp.Attr{State: qp.Err}, qp.AttrState) == nil &&
			p.c.event(p.user, eventQPFatal) {
			p.events.Add(1)
		}
	}
}

func (c *Context) reqNotifyCQ(r *request) syscall.Errno {
	q, no := get[*completionQueue](c, r.in.U32())
	if no != 0 {
		return no
	}
	if r.in.U32() != 0 {
		q.notify.CompareAndSwap(notifyNone, notifySolicited)
	} else {
		q.notify.Store(notifyAny)
	}
	return 0
}

func (c *Context) destroyCQ(r *request) syscall.Errno {
	r.in.Skip(8)
	h := r.in.U32()
	q, no := doomed[*completionQueue](c, h)
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
	reported, async := q.events.Load(), uint32(0)
	if q.channel != nil {
		reported -= uint32(q.channel.takeBack(q.user, 8))
	}
	if a := c.async.Load(); a != nil && q.overrun {
		async = 1 - min(1, uint32(a.takeBack(q.user, 16)))
	}
	r.out.U32(reported, async)
	return 0
}

// resizeCQ moves the completions that the program has not polled to a ring of another size.
func (c *Context) resizeCQ(r *request) syscall.Errno {
	r.in.Skip(8)
	q, no := get[*completionQueue](c, r.in.U32())
	if no != 0 {
		return no
	}
	depth := r.in.U32()
	if depth < 1 || depth > maxCQEs {
		return syscall.EINVAL
	}
	next, err := newRing(c.file, int(depth), wcSize)
	if err != nil {
		return errno(err)
	}
	// Doorbells before this call may still wait. The first command ends the step in progress, and
	// the next step sends what they announce.
	c.qps.Range(func(_, v any) bool {
		if p := v.(*queuePair); p.sendCQ == q {
			_ = c.ring(p.handle)
		}
		return true
	})
	c.dev.do(func() {})
	c.dev.do(func() {})
	old := q.ring
	err = inside.ResizeCQ(q.cq, next.depth(), func() bool {
		q.drain()
		if !old.move(next) {
			return false
		}
		q.ring = next
		return true
	})
	if err != nil {
		c.file.release(next.part)
		return errno(err)
	}
	c.file.release(old.part)
	r.out.U32(uint32(next.depth()), 0)
	putRing(&r.driverOut, next)
	return 0
}

// destroy destroys the CQ. The caller holds Context.mu.
func (q *completionQueue) destroy() error {
	if err := q.cq.Close(); err != nil {
		return err
	}
	q.c.dev.do(func() { q.gone = true })
	q.c.file.release(q.ring.part)
	return nil
}

// maxChannels is the number of completion channels of a context.
const maxChannels = 1 << 10
