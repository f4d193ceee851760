package roce

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
)

// QP is a queue pair. Its methods are safe for concurrent use.
type QP struct {
	// The engine's part comes first, aligned to cache lines (newQP). PostSend accesses nothing
	// else.
	qp qp.QP
	_  [qpPadding]byte // not last: Go would add a byte after an empty array
	qpState
}

// qpState is what package roce adds to the engine's QP. It fills one cache line.
type qpState struct {
	closed atomic.Bool
	ids    atomic.Uint32 // GID index, -1 for the default (upper half), and P_Key (lower half)
	start  uint32        // chosen class (upper 4 bits), features (4) and first PSN (lower 24)
	chosen atomic.Uint32 // Q_Key of a UD QP, CongestionControl of an RC QP
	path   uint32        // number of paths set so far; 0: no path now. Owner only
	bytes  uint32        // taken from Device.mem
	pd     *PD
	send   *CQ
	recv   *CQ
	srq    *SRQ
	cmID   *cmID // of the connection manager. Owner only
}

// setIDs sets the GID index and the P_Key.
func (q *QP) setIDs(gid int, key PKey) {
	gid = max(math.MinInt16, min(gid, math.MaxInt16)) // beyond, no table has an entry
	q.ids.Store(uint32(uint16(gid))<<16 | uint32(key))
}

// setStart sets the chosen traffic class, the features and the first PSN. They do not change later.
func (q *QP) setStart(class int, f Features, psn PSN) {
	q.start = uint32(max(class, -1)+1)<<28 | uint32(f&maxFeatures)<<24 | uint32(psn)
}

const maxFeatures Features = 1<<4 - 1

// psn returns the first PSN that this side sends. In messages of the connection manager it is the
// first PSN that the receiver of the message sends (IBA 12.7.31).
func (q *QP) psn() PSN { return PSN(q.start & (1<<24 - 1)) }

// features returns the features that this side offers to peers.
func (q *QP) features() Features { return Features(q.start>>24) & maxFeatures }

// class returns the class that this side has chosen for the QP; 0: none; -1: class 0.
func (q *QP) class() int { return int(q.start>>28) - 1 }

// qkey returns the Q_Key of a UD QP, 0 for others.
func (q *QP) qkey() QKey {
	if q.Type() != UD {
		return 0
	}
	return QKey(q.chosen.Load())
}

// setCongestion keeps the algorithm of an RC QP for the transition to INIT.
func (q *QP) setCongestion(c CongestionControl) {
	if q.Type() == RC {
		q.chosen.Store(uint32(c))
	}
}

// gidIndex returns the index in Device.GIDs of the local address; -1: the default.
func (q *QP) gidIndex() int { return int(int16(q.ids.Load() >> 16)) }

// pkey returns the QP's P_Key.
func (q *QP) pkey() PKey { return PKey(q.ids.Load()) }

// sendLock serializes posters of sends, recvLock posters of receives.
func (q *QP) sendLock() postLock { return postLock{q.qp.Posters()} }
func (q *QP) recvLock() postLock { return postLock{q.qp.RecvPosters()} }

// device returns the QP's device, or nil for a zero QP.
func (q *QP) device() *Device {
	if q.pd == nil {
		return nil
	}
	return q.pd.dev
}

// QPN returns the QP's number.
func (q *QP) QPN() QPN { return q.qp.QPN() }

// Type returns the QP's transport service.
func (q *QP) Type() QPType { return QPType(q.qp.Type()) }

// State returns the QP's current state.
func (q *QP) State() State { return State(q.qp.State()) }

// PostSend posts send work requests, in order and with one doorbell. The device owns the memory
// that their SGEs name until the completion. PostSend copies SGE lists and inline data, and does
// not allocate. With Manual progress, the first post after a step that received packets is sent
// before PostSend returns, as the likely answer; other posts are sent by the next step.
//
// If a work request fails, those before it are posted, and the error is a *PostError that says how
// many. In state ERR posting succeeds, and the work requests complete with WRFlushErr.
//
// A SEND or WRITE with immediate on RC waits while the peer has posted no receive. The peer then
// sends RNR NAKs (Counters.RcvdRNR), and after many of them Events reports EventPeerNotReady.
// ConnectOptions.RNRRetries limits the retries, without limit by default; then the work request
// completes with RNRRetryExcErr.
//
// Errors: ErrQPState before RTS, ErrSQFull, ErrInvalidWR, ErrInvalidKey, ErrForeign, ErrClosed.
func (q *QP) PostSend(wrs ...SendWR) error {
	if postHooks.Load() > 0 {
		q.beforePost(wrs)
	}
	l := q.sendLock()
	l.Lock()
	n, err := q.qp.Post(engineSends(wrs))
	l.Unlock()
	if n > 0 {
		q.qp.Host().(*loop.Loop).Posted(&q.qp)
	}
	if err != nil {
		return q.refused(n, err)
	}
	return nil
}

// PostRecv posts receive work requests, in order. The device owns the memory that their SGEs name
// until the completion. If a work request fails, those before it are posted, and the error is a
// *PostError that says how many.
//
// Errors: ErrQPState in RESET, ErrRQFull, ErrInvalidWR, ErrInvalidKey, ErrHasSRQ, ErrClosed.
func (q *QP) PostRecv(wrs ...RecvWR) error {
	if tracing.Load() > 0 {
		q.device().tracedRecvs(q.QPN(), wrs)
	}
	l := q.recvLock()
	l.Lock()
	n, err := q.qp.PostRecv(engineRecvs(wrs))
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

// Modify changes attributes and the state as ibv_modify_qp does, for programs that need more
// control than Connect gives. mask selects fields of a. Device.ResolvePath returns a value for
// a.Path. a.PKey selects a partition of Device.PKeys by its low 15 bits.
//
// A change to StateErr flushes all outstanding work requests: they complete with WRFlushErr, and
// then the Device no longer uses their memory. A change to StateReset discards them without
// completions, and ends the Conn of the QP. A PostSend or PostRecv that runs concurrently with it
// either posts before the change, so that its work requests are discarded, or fails with
// ErrQPState.
//
// Errors: ErrQPState for a transition that does not exist, ErrInvalidAttr, ErrPKey, ErrClosed.
// After an error nothing has changed.
func (q *QP) Modify(a *Attr, mask AttrMask) error {
	if q.closed.Load() {
		return ErrClosed
	}
	if mask&AttrState != 0 && a.State == StateReset {
		defer q.lockPosters()()
	}
	var err error
	if gone := q.device().do(func(now qp.Time) { err = q.modify(now, a, mask) }); gone != nil {
		return gone
	}
	return err
}

// lockPosters makes posters wait until unlock is called. A poster that has checked the state of the
// QP publishes its work requests before lockPosters returns, and later ones check the state again.
func (q *QP) lockPosters() (unlock func()) {
	q.sendLock().Lock()
	q.recvLock().Lock()
	return func() {
		q.recvLock().Unlock()
		q.sendLock().Unlock()
	}
}

// modify changes the attributes, and keeps what the device needs to know of them. Owner only.
func (q *QP) modify(now qp.Time, a *Attr, mask AttrMask) error {
	if q.closed.Load() { // since the caller has checked it
		return ErrClosed
	}
	if mask&AttrPKey != 0 && a.PKey != 0 { // the engine refuses 0
		own := *a
		var err error
		if own.PKey, err = q.device().pkeys.find(a.PKey); err != nil {
			return err
		}
		a = &own
	}
	reset := mask&AttrState != 0 && a.State == StateReset
	if reset {
		q.device().gsi.endFailed(now) // while the QP still knows why it failed
	}
	if reset || (mask&AttrState != 0 && a.State == StateErr) {
		// A program may end its QP as soon as it has the peer's last message.
		q.device().loop.SendPending(&q.qp)
	}
	if err := q.qp.Modify(now, a.engine(), qp.AttrMask(mask)); err != nil {
		return err
	}
	if mask&AttrPKey != 0 {
		q.setIDs(q.gidIndex(), a.PKey)
	}
	if mask&AttrPath != 0 {
		q.path++
	}
	if reset {
		q.device().gsi.leave(now, q)
		q.path = 0
	}
	if mask&AttrCongestion != 0 {
		q.setCongestion(a.Congestion)
	}
	if mask&AttrQKey != 0 {
		q.chosen.Store(uint32(a.QKey))
	}
	return nil
}

// halt changes the state to ERR, which is possible in every state. Owner only.
func (q *QP) halt(now qp.Time) error {
	return q.qp.Modify(now, &qp.Attr{State: qp.Err}, qp.AttrState)
}

// Query returns the current attributes (ibv_query_qp).
func (q *QP) Query() (Attr, error) {
	var a Attr
	if q.closed.Load() {
		return a, ErrClosed
	}
	err := q.device().do(func(qp.Time) { *a.engine() = q.qp.Query() })
	return a, err
}

// Activity returns a number that changes when a connected QP accepts a request packet from its peer
// or the peer acknowledges a packet, so that a program can recognize an idle peer.
//
// Errors: ErrClosed.
func (q *QP) Activity() (n uint64, err error) {
	if q.closed.Load() {
		return 0, ErrClosed
	}
	err = q.device().do(func(qp.Time) { n = q.qp.Activity() })
	return n, err
}

// Drain waits until every posted send work request has completed, successfully or not, or ctx is
// done. It does not poll their completions. With Manual progress it runs the protocol meanwhile.
//
// Errors: ctx's error, ErrVirtualTime, ErrClosed, that of Device.Err.
func (q *QP) Drain(ctx context.Context) error {
	err := q.device().Await(ctx, func() bool { return q.qp.SQLen() == 0 || q.closed.Load() })
	switch n := q.qp.SQLen(); {
	case n == 0:
		return nil
	case err == nil:
		return ErrClosed
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return fmt.Errorf("roce: %d send work requests are still outstanding%s: %w", n,
			q.waitsFor(), err)
	}
	return err
}

// Outstanding returns the number of send work requests that are posted and that the device still
// processes. One that asks for no completion counts, too, until the peer has acknowledged it. It
// costs two loads. With concurrent posts it is a snapshot.
func (q *QP) Outstanding() int { return q.qp.SQLen() }

// waitsFor explains why the send queue makes no progress, if the device knows.
func (q *QP) waitsFor() (why string) {
	_ = q.device().do(func(qp.Time) {
		if q.qp.PeerNotReady() {
			why = ", because the peer has posted no receive"
		}
	})
	return why
}

// Cancel ends all outstanding work requests: it changes the QP to StateErr. They complete with
// WRFlushErr, and when Cancel returns, the Device no longer uses their memory. The completions must
// be polled as usual. To use the QP again, change it to StateReset and call Connect; Dial and
// Accept need a new QP.
//
// Errors: ErrClosed.
func (q *QP) Cancel() error { return q.Modify(&Attr{State: StateErr}, AttrState) }

// Close destroys the QP. Outstanding work requests complete with WRFlushErr, unless a CQ lacks the
// capacity for all of them. A concurrent PostSend or PostRecv either succeeds, and its work
// requests are flushed, or returns ErrClosed. Closing twice is harmless.
func (q *QP) Close() error {
	d := q.device()
	d.ctl.Lock()
	defer d.ctl.Unlock()
	return q.shut()
}

// shut destroys the QP. The caller holds Device.ctl.
func (q *QP) shut() error {
	if q.closed.Swap(true) {
		return nil
	}
	d := q.device()
	// Posters wait until the QP is destroyed. What was posted before is flushed, and later posts
	// fail, so that no work request is accepted and never completes.
	unlock := q.lockPosters()
	send, recv := q.qp.Depths()
	err := d.do(func(now qp.Time) {
		d.loop.SendPending(&q.qp)
		d.gsi.abandon(now, q)
		if q.flushFits() {
			_ = q.halt(now)
		}
		q.destroy()
	})
	unlock()
	for g := range d.joined[q] {
		_ = q.leaveGroup(g) // fails if the port is closed, which ended the memberships
	}
	q.send.serve(-send, nil, -1)
	q.recv.serve(-recv, q.srq, -1)
	q.send.unused()
	q.recv.unused()
	if q.srq != nil {
		q.srq.refs--
	}
	q.pd.pd.Release()
	d.mem.give(int(q.bytes))
	q.send, q.recv = nil, nil
	d.freeQP(d.qps[q])
	delete(d.qps, q)
	if t := d.trace.Load(); t != nil && t.by[q.QPN()] != nil {
		_ = d.setTrace(q.QPN(), nil)
	}
	q.pd.remove(q)
	d.setPostPrefetch(d.window)
	return err
}

// flushFits reports whether the flush completions fit, so that closing one QP does not overrun a CQ
// that others use. Owner only, because only the owner adds completions.
func (q *QP) flushFits() bool {
	send, recv := q.qp.SQLen(), q.qp.RQLen()
	free := func(c *CQ) int { return c.cq.Depth() - c.cq.Len() }
	if q.send == q.recv {
		return send+recv <= free(q.send)
	}
	return send <= free(q.send) && recv <= free(q.recv)
}

func (q *QP) destroy() {
	q.device().eng.DestroyQP(&q.qp)
	q.qp.SetOuter(nil)
}
