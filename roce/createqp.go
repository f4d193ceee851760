package roce

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/qp"
)

// qpSlab is how many QPs are allocated together: enough for the allocator to align them to pages. A
// QP fills whole cache lines; TestLayout checks it.
const qpSlab = 64

// slab is the memory of qpSlab QPs. It counts as memory in use as a whole: one QP that is open
// keeps all of it. The memory of a QP is never reused for another one, so an old pointer always
// finds a closed QP.
type slab struct {
	qps  []QP
	used int // QPs handed out
	open int // of them, QPs that are not closed
}

// newQP returns a QP of the current slab, aligned to a cache line. The caller holds ctl, and calls
// freeQP when the QP is closed or was not needed.
func (d *Device) newQP() (*QP, *slab, error) {
	s := d.slab
	if s == nil || s.used == len(s.qps) {
		if err := d.mem.take(qpSlab*qpBytes, "a slab of QPs"); err != nil {
			return nil, nil, err
		}
		s = &slab{qps: make([]QP, qpSlab)}
		d.slab = s
	}
	q := &s.qps[s.used]
	s.used++
	s.open++
	return q, s, nil
}

// freeQP records that a QP of the slab was closed. A slab without open QPs is dropped: its memory
// is free as soon as the program has no pointer to one of its QPs. The caller holds ctl.
func (d *Device) freeQP(s *slab) {
	if s.open--; s.open == 0 && s.used == len(s.qps) {
		d.dropSlab(s)
	}
}

func (d *Device) dropSlab(s *slab) {
	if s == d.slab {
		d.slab = nil
	}
	lapse(d.mem.account, &s.qps[0], qpSlab*qpBytes)
}

// CreateQP creates a queue pair in state INIT: receives can be posted at once, and Connect, Dial or
// Accept (RC, UC) or Activate (UD) makes it ready to send.
//
// Without QPConfig.SendCQ, CreateQP creates a CQ that holds all completions of the QP, so it cannot
// overrun: see QP.SendCQ.
//
// Errors: ErrInvalid, ErrInvalidDepth, ErrInvalidAttr, ErrClass, ErrPKey, ErrTooManyQPs,
// ErrNoMemory, ErrNoGID, ErrForeign, ErrClosed.
func (d *Device) CreateQP(pd *PD, c QPConfig) (*QP, error) {
	c.setDefaults()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	if err := d.checkQP(pd, &c); err != nil {
		return nil, err
	}
	own, err := d.createOwnCQ(&c)
	if err != nil {
		return nil, err
	}
	q, slab, err := d.newQP()
	if err != nil {
		own.unused()
		return nil, fmt.Errorf("roce: create a QP: %w", err)
	}
	if err := d.initQP(q, pd, &c); err != nil {
		d.freeQP(slab)
		own.unused()
		return nil, err
	}
	d.qps[q] = slab
	pd.add(q)
	d.spread(q.memory)
	d.setPostPrefetch(d.window)
	return q, nil
}

// initQP makes q, whose memory is zero, a QP in state INIT. The caller holds ctl.
func (d *Device) initQP(q *QP, pd *PD, c *QPConfig) error {
	q.pd, q.send, q.recv, q.srq = pd, c.SendCQ, c.RecvCQ, c.SRQ
	class := c.Class
	if class == 0 {
		class = d.class
	}
	q.setStart(class, d.featuresFor(c), qp.StartPSN(d.rand()))
	key, err := d.pkeys.find(c.PKey)
	if err != nil {
		return err
	}
	gid := -1
	if c.GIDIndex != nil {
		gid = *c.GIDIndex
	}
	q.setIDs(gid, key)
	if c.Type == RC {
		q.chosen.Store(uint32(d.congestion))
		if c.Congestion != nil {
			q.chosen.Store(uint32(*c.Congestion))
		}
	}
	if _, err := d.localGID(q.gidIndex(), GID{}); err != nil {
		return err
	}
	if err := pd.pd.Retain(); err != nil {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	if err := q.create(c); err != nil {
		pd.pd.Release()
		return fmt.Errorf("roce: create a QP: %w", err)
	}
	send, recv := q.qp.Depths()
	q.send.serve(send, nil, 1)
	q.recv.serve(recv, q.srq, 1)
	if q.srq != nil {
		q.srq.refs++
	}
	return nil
}

func (c *QPConfig) setDefaults() {
	setDefault(&c.SendDepth, defaultDepth)
	setDefault(&c.RecvDepth, defaultDepth)
	setDefault(&c.MaxSendSGE, defaultSGE)
	setDefault(&c.MaxRecvSGE, defaultSGE)
	setDefault(&c.MaxInline, defaultInline)
}

func setDefault(v *int, def int) {
	if *v == 0 {
		*v = def
	}
}

// checkQP checks the objects of c; the engine checks the numbers.
func (d *Device) checkQP(pd *PD, c *QPConfig) error {
	err := d.open()
	switch {
	case err != nil:
		return err
	case pd == nil:
		return fmt.Errorf("%w: a QP needs a PD", ErrInvalid)
	case pd.dev != d || c.SendCQ.foreign(d) || c.RecvCQ.foreign(d),
		c.SRQ != nil && c.SRQ.dev != d:
		return ErrForeign
	case c.Class >= NumClasses:
		return fmt.Errorf("%w: QPConfig.Class is %d", ErrClass, c.Class)
	case pd.closed || c.SendCQ.over() || c.RecvCQ.over(),
		c.SRQ != nil && c.SRQ.closed.Load():
		return fmt.Errorf("%w: the PD, a CQ or the SRQ", ErrClosed)
	}
	return nil
}

// create initializes the engine's QP and moves it to INIT.
func (q *QP) create(c *QPConfig) error {
	init := qp.InitAttr{
		Type: qp.Type(c.Type), PD: q.pd.pd, SendCQ: q.send.cq, RecvCQ: q.recv.cq,
		SQDepth: c.SendDepth, RQDepth: c.RecvDepth, MaxSendSGE: c.MaxSendSGE,
		MaxRecvSGE: c.MaxRecvSGE,
		MaxInline:  c.MaxInline, SignalAll: c.SignalAll, QPN: c.QPN,
		AckFirst: c.AckFirst,
	}
	if c.SRQ != nil {
		init.SRQ = c.SRQ.srq
	}
	if err := init.Check(); err != nil {
		return err
	}
	q.bytes = uint32(init.Footprint())
	d := q.device()
	if err := d.mem.take(int(q.bytes), "a QP of these depths"); err != nil {
		return err
	}
	var err error
	gone := d.do(func(now qp.Time) {
		if err = d.eng.InitQP(&q.qp, init); err != nil {
			return
		}
		q.qp.SetOuter(q)
		a, mask := q.initAttr(c.Type, allRemote, 0)
		a.Rate, a.Burst = c.Rate, c.Burst
		mask |= AttrRate
		if err = q.qp.Modify(now, a.engine(), qp.AttrMask(mask)); err != nil {
			q.destroy()
		}
	})
	if err = errors.Join(gone, err); err != nil {
		d.mem.give(int(q.bytes))
	}
	return err
}
