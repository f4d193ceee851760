package roce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
)

// QP is a queue pair. Its methods are safe for concurrent use; PostSend and PostRecv take a small lock of the QP's own.
//
// It begins with the engine's part, in cache lines by use; posting a send looks at nothing else. See newQP.
type QP struct {
	qp     qp.QP
	closed atomic.Bool
	gid    int32 // index, or -1 for the default one

	psn   PSN // the first one that this end sends
	qkey  atomic.Uint32
	path  uint32 // counts the paths that the engine was given; 0: it has none; the shard's
	bytes uint32 // of its rings, for Device.mem
	pd    *PD
	send  *CQ
	recv  *CQ
	srq   *SRQ
	talk  *dialogue // with the peer's connection manager; the shard's

	groups map[GID]bool // multicast; under Device.ctl
}

// qpSlab is how many QPs are allocated together: enough that they are aligned to pages. A QP fills whole cache lines; TestLayout tells.
const qpSlab = 64

// sendLock and recvLock let one poster in at a time.
func (q *QP) sendLock() postLock { return postLock{q.qp.Posters()} }
func (q *QP) recvLock() postLock { return postLock{q.qp.RecvPosters()} }

// device is the QP's; nil if nobody made the QP.
func (q *QP) device() *Device {
	if q.pd == nil {
		return nil
	}
	return q.pd.dev
}

// newQP takes a QP from the current slab, where each begins with a cache line. Its memory is never used again for another
// one: who still holds the pointer finds a closed QP. The caller holds ctl.
func (d *Device) newQP() *QP {
	if len(d.slab) == 0 {
		d.slab = make([]QP, qpSlab)
	}
	q := &d.slab[0]
	d.slab = d.slab[1:]
	return q
}

// CreateQP makes a queue pair in state INIT: receives can be posted at once, and Connect (RC, UC) or Activate (UD) makes
// it ready to send.
func (d *Device) CreateQP(pd *PD, c QPConfig) (*QP, error) {
	c.setDefaults()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.checkQP(pd, &c); err != nil {
		return nil, err
	}
	q := d.newQP()
	q.pd, q.send, q.recv, q.srq, q.gid, q.psn = pd, c.SendCQ, c.RecvCQ, c.SRQ, -1, PSN(d.rand()&0xffffff)
	if c.GIDIndex != nil {
		q.gid = int32(min(*c.GIDIndex, math.MaxInt32))
	}
	if _, err := d.localGID(int(q.gid), GID{}); err != nil {
		return nil, err
	}
	if err := pd.pd.Retain(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if err := q.create(&c); err != nil {
		pd.pd.Release()
		return nil, fmt.Errorf("roce: create a QP: %w", err)
	}
	q.send.refs++
	q.recv.refs++
	if q.srq != nil {
		q.srq.refs++
	}
	d.qps[q] = struct{}{}
	d.spread(q.memory)
	d.setPostPrefetch(d.window)
	return q, nil
}

func (c *QPConfig) setDefaults() {
	for _, f := range []struct {
		v *int
		d int
	}{{&c.SendDepth, defaultDepth}, {&c.RecvDepth, defaultDepth}, {&c.MaxSendSGE, defaultSGE}, {&c.MaxRecvSGE, defaultSGE}, {&c.MaxInline, defaultInline}} {
		if *f.v == 0 {
			*f.v = f.d
		}
	}
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
}

// checkQP refuses what is closed, missing or another device's; the engine checks the numbers.
func (d *Device) checkQP(pd *PD, c *QPConfig) error {
	switch {
	case d.closing.Load():
		return ErrClosed
	case pd == nil || c.SendCQ == nil:
		return fmt.Errorf("%w: a QP needs a PD and a SendCQ", ErrInvalid)
	case pd.dev != d || c.SendCQ.dev != d || c.RecvCQ.dev != d || (c.SRQ != nil && c.SRQ.dev != d):
		return ErrForeign
	case pd.closed || c.SendCQ.closed.Load() || c.RecvCQ.closed.Load() || (c.SRQ != nil && c.SRQ.closed.Load()):
		return fmt.Errorf("%w: the PD, a CQ or the SRQ", ErrClosed)
	}
	return nil
}

// create makes the engine's QP and brings it to INIT.
func (q *QP) create(c *QPConfig) error {
	init := qp.InitAttr{
		Type: c.Type, PD: q.pd.pd, SendCQ: q.send.cq, RecvCQ: q.recv.cq,
		SQDepth: c.SendDepth, RQDepth: c.RecvDepth, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE,
		MaxInline: c.MaxInline, SignalAll: c.SignalAll, QPN: c.QPN,
	}
	if c.SRQ != nil {
		init.SRQ = c.SRQ.srq
	}
	if err := init.Check(); err != nil {
		return err
	}
	q.bytes = uint32(qpBytes + init.Footprint())
	d := q.device()
	if err := d.mem.take(int(q.bytes), "a QP of these depths"); err != nil {
		return err
	}
	var err error
	gone := d.do(func(now qp.Time) {
		if err = d.eng.InitQP(&q.qp, init); err != nil {
			return
		}
		q.qp.SetOwner(q)
		a, mask := initAttr(c.Type, allRemote, 0)
		if err = q.qp.Modify(now, &a, mask); err != nil {
			q.destroy(now)
		}
	})
	if err = errors.Join(gone, err); err != nil {
		d.mem.give(int(q.bytes))
	}
	return err
}

// QPN is the QP's number.
func (q *QP) QPN() QPN { return q.qp.QPN() }

// Type is the QP's transport service.
func (q *QP) Type() QPType { return q.qp.Type() }

// State is the QP's state at this moment.
func (q *QP) State() State { return q.qp.State() }

// PostSend posts send work requests, in order, with one doorbell. The memory that their SGEs name belongs to the NIC until
// the completion; SGE lists and inline data are copied. It does not allocate. With Manual progress the first post after a turn
// that received something is sent before PostSend returns, as the likely answer; others go with the next turn.
//
// If one is refused, those before it are posted: then the error is a *PostError that says how many. Errors:
// ErrQPState before RTS, ErrSQFull, ErrInvalidWR, ErrInvalidKey, ErrClosed.
func (q *QP) PostSend(wrs ...SendWR) error {
	if postPrefetch.Load() > 0 {
		q.prefetch()
	}
	l := q.sendLock()
	l.Lock()
	n, err := q.qp.Post(wrs)
	l.Unlock()
	if n > 0 {
		q.qp.Host().(*loop.Loop).Posted(&q.qp)
	}
	if err != nil {
		return q.refused(n, err)
	}
	return nil
}

// PostRecv posts receive work requests, in order. Errors are as PostSend's, with ErrRQFull, and ErrHasSRQ for a QP
// that takes its receives from an SRQ.
func (q *QP) PostRecv(wrs ...RecvWR) error {
	l := q.recvLock()
	l.Lock()
	n, err := q.qp.PostRecv(wrs)
	l.Unlock()
	if err != nil {
		return q.refused(n, err)
	}
	return nil
}

func (q *QP) refused(n int, err error) error {
	if q.closed.Load() {
		err = ErrClosed
	}
	return postError(n, err)
}

// Modify changes attributes and state as ibv_modify_qp does, for those who want verbs' own steps instead of Connect.
// mask says which fields of a count. Device.ResolvePath makes a.Path.
func (q *QP) Modify(a *Attr, mask AttrMask) error {
	if q.closed.Load() {
		return ErrClosed
	}
	var err error
	if gone := q.device().do(func(now qp.Time) { err = q.modify(now, a, mask) }); gone != nil {
		return gone
	}
	return err
}

// modify runs on the shard. It keeps in mind what the device has to know of the QP.
func (q *QP) modify(now qp.Time, a *Attr, mask AttrMask) error {
	if err := q.qp.Modify(now, a, mask); err != nil {
		return err
	}
	if mask&AttrPath != 0 {
		q.path++
	}
	if mask&AttrState != 0 && a.State == StateReset {
		q.path = 0
	}
	if mask&AttrQKey != 0 {
		q.qkey.Store(uint32(a.QKey))
	}
	return nil
}

// Query returns the QP's attributes as they are now.
func (q *QP) Query() (Attr, error) {
	var a Attr
	if q.closed.Load() {
		return a, ErrClosed
	}
	err := q.device().do(func(qp.Time) { a = q.qp.Query() })
	return a, err
}

// Drain waits until every posted send work request has completed, successfully or not, or ctx is done. Their
// completions may still have to be polled. With Manual progress it drives the device.
func (q *QP) Drain(ctx context.Context) error {
	const shortest, longest = 10 * time.Microsecond, time.Millisecond
	pause := shortest
	for q.qp.SQLen() > 0 {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("roce: %d send work requests are still outstanding: %w", q.qp.SQLen(), err)
		}
		if q.closed.Load() {
			return ErrClosed
		}
		if q.device().virtual {
			return ErrVirtualTime
		}
		if q.device().manual && q.device().loop.TryStep() > 0 {
			pause = shortest
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
	return nil
}

// Close destroys the QP. Work requests that are still outstanding are flushed into its CQs (WRFlushErr), unless
// a CQ has no room for them. A PostSend or PostRecv that meets it is either taken and flushed, or refused with ErrClosed. Closing
// twice is harmless.
func (q *QP) Close() error {
	d := q.device()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	return q.shut()
}

// shut destroys the QP; the caller holds Device.ctl.
func (q *QP) shut() error {
	if q.closed.Swap(true) {
		return nil
	}
	d := q.device()
	// Posters wait outside until the QP is no more: what a post has taken by then is flushed, and later ones are refused. So
	// no work request is taken and never completes.
	q.sendLock().Lock()
	q.recvLock().Lock()
	err := d.do(func(now qp.Time) {
		d.loop.SendPending()
		d.gsi.abandon(now, q)
		if q.flushFits() {
			// Every state may go to ERR, so there is nothing to be said here.
			_ = q.qp.Modify(now, &Attr{State: StateErr}, AttrState)
		}
		q.destroy(now)
	})
	q.recvLock().Unlock()
	q.sendLock().Unlock()
	for g := range q.groups {
		_ = q.leaveGroup(g) // the port may be gone, and its memberships with it
	}
	q.send.refs--
	q.recv.refs--
	if q.srq != nil {
		q.srq.refs--
	}
	q.pd.pd.Release()
	d.mem.give(int(q.bytes))
	delete(d.qps, q)
	d.setPostPrefetch(d.window)
	return err
}

// flushFits tells whether the flush completions fit, so that closing one QP does not overrun a CQ that others use.
// Only the shard's thread adds completions, and that is where it runs.
func (q *QP) flushFits() bool {
	send, recv := q.qp.SQLen(), q.qp.RQLen()
	room := func(c *CQ) int { return c.cq.Depth() - c.cq.Len() }
	if q.send == q.recv {
		return send+recv <= room(q.send)
	}
	return send <= room(q.send) && recv <= room(q.recv)
}

func (q *QP) destroy(qp.Time) {
	q.device().eng.DestroyQP(&q.qp)
	q.qp.SetOwner(nil)
}
