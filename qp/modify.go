package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/mr"
)

// Attr holds the attributes of a QP. A mask selects the valid ones.
type Attr struct {
	State        State
	PathMTU      bth.MTU
	QKey         bth.QKey
	RQPSN, SQPSN bth.PSN // first expected PSN, first sent PSN
	DestQPN      bth.QPN
	// Access is what the peer may do: RemoteWrite, RemoteRead, RemoteAtomic, FlushGlobal,
	// FlushPersistent
	Access          mr.Access
	PKey            bth.PKey
	Path            frame.Path
	MaxRdAtomic     uint8 // READs and atomics outstanding as requester, 0 to MaxRdAtomic
	MaxDestRdAtomic uint8 // the same as responder
	MinRNRTimer     uint8 // code of RNR NAKs, 0 to 31 (IBA 9.7.5.2.8)
	Timeout         uint8 // Local ACK Timeout of 4.096 us x 2^Timeout, 0 to 31; 0: none
	RetryCnt        uint8 // timeouts in a row before the QP fails, 0 to 7
	RNRRetry        uint8 // RNR NAKs in a row before the QP fails, 0 to 6; 7: no limit
	// Selective turns on selective repeat in both directions (RC). The peer must have agreed to it.
	Selective bool
	// Congestion is the algorithm that limits what the QP sends (RC). The default is that of
	// Config.
	Congestion Congestion
	// Class is the traffic class, 0 to 7. Everything that the QP sends has this class.
	Class uint8
	// Rate limits what the QP sends, in bytes per second of frames from the Ethernet header to the
	// ICRC; 0: no limit. Burst is what it may send at once after a pause, in bytes, at least one
	// frame. ACKs, NAKs and CNPs count, but do not wait.
	Rate  uint64
	Burst int
}

// attrs holds the attributes that the QP stores only for Query.
type attrs struct {
	RQPSN, SQPSN    bth.PSN
	PathMTU         uint16
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8
	MinRNRTimer     uint8
	Timeout         uint8
	RetryCnt        uint8
	RNRRetry        uint8
	Selective       bool
	Congestion      Congestion
}

// AttrMask is a set of attributes.
type AttrMask uint32

// The attributes.
const (
	AttrState AttrMask = 1 << iota
	AttrPathMTU
	AttrQKey
	AttrRQPSN
	AttrSQPSN
	AttrDestQPN
	AttrAccess
	AttrPKey
	AttrPath
	AttrMaxRdAtomic
	AttrMaxDestRdAtomic
	AttrMinRNRTimer
	AttrTimeout
	AttrRetryCnt
	AttrRNRRetry
	AttrSelective
	AttrCongestion
	AttrClass
	AttrRate // Rate and Burst
)

var attrNames = []string{
	"State", "PathMTU", "QKey", "RQPSN", "SQPSN", "DestQPN", "Access", "PKey", "Path",
	"MaxRdAtomic", "MaxDestRdAtomic", "MinRNRTimer", "Timeout", "RetryCnt", "RNRRetry", "Selective",
	"Congestion", "Class", "Rate",
}

// String lists the names of the attributes.
func (m AttrMask) String() string {
	out := ""
	for i, n := range attrNames {
		if m&(1<<i) != 0 {
			if out != "" {
				out += ", "
			}
			out += n
		}
	}
	return out
}

// transition is a row of the state table (IBA 11.2.4.2) for all transports.
type transition struct {
	from, to State
	required [numTypes]AttrMask
	optional [numTypes]AttrMask
}

// qpAccess is what a QP's access flags may contain. As in verbs, LocalWrite is allowed and has no
// effect.
const qpAccess = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead | mr.RemoteAtomic |
	mr.FlushGlobal | mr.FlushPersistent

const (
	connAttrs  = AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN
	sqdAttrsRC = AttrPath | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic |
		AttrMaxDestRdAtomic | AttrMinRNRTimer | AttrAccess | AttrPKey | AttrCongestion
)

var transitions = []transition{
	{from: Reset, to: Init,
		required: [numTypes]AttrMask{UD: AttrQKey},
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrPKey | AttrSelective | AttrCongestion,
			UC: AttrAccess | AttrPKey, UD: AttrPKey}},
	{from: Init, to: Init,
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrPKey | AttrSelective | AttrCongestion,
			UC: AttrAccess | AttrPKey, UD: AttrPKey | AttrQKey}},
	{from: Init, to: RTR,
		required: [numTypes]AttrMask{RC: connAttrs | AttrMaxDestRdAtomic | AttrMinRNRTimer,
			UC: connAttrs},
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrPKey | AttrSelective | AttrCongestion,
			UC: AttrAccess | AttrPKey, UD: AttrPKey | AttrQKey}},
	{from: RTR, to: RTS,
		required: [numTypes]AttrMask{
			RC: AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic,
			UC: AttrSQPSN, UD: AttrSQPSN},
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrMinRNRTimer | AttrPath | AttrCongestion,
			UC: AttrAccess | AttrPath, UD: AttrQKey}},
	// Extensions of the table: the path of a connected QP may change, because MAC addresses of
	// neighbors do, and so may the congestion control.
	{from: RTS, to: RTS,
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrMinRNRTimer | AttrPath | AttrCongestion,
			UC: AttrAccess | AttrPath, UD: AttrQKey}},
	{from: RTS, to: SQD},
	{from: SQD, to: SQD,
		optional: [numTypes]AttrMask{RC: sqdAttrsRC, UC: AttrPath | AttrAccess | AttrPKey,
			UD: AttrPKey | AttrQKey}},
	{from: SQD, to: RTS,
		optional: [numTypes]AttrMask{RC: AttrAccess | AttrMinRNRTimer | AttrCongestion, UC: AttrAccess,
			UD: AttrQKey}},
	{from: SQE, to: RTS,
		optional: [numTypes]AttrMask{UC: AttrAccess, UD: AttrQKey}},
}

// Modify changes attributes and, with AttrState, the state. RESET and ERR can be entered from every
// state. No other goroutine may post to the QP during a change to RESET: a work request that was
// checked before it and published after it would stay in the queue.
//
// After an error nothing has changed. Errors: ErrQPState for a transition that does not exist and,
// in SQD, before the send queue has drained; ErrInvalidAttr for a missing, unexpected or
// out-of-range attribute.
func (q *QP) Modify(now Time, a *Attr, mask AttrMask) error {
	if q.dead {
		return fmt.Errorf("%w: the QP was destroyed", ErrQPState)
	}
	from, to := q.State(), q.State()
	if mask&AttrState != 0 {
		to = a.State
	}
	if to == Reset || to == Err {
		return q.abandon(to, mask)
	}
	t := findTransition(from, to, q.typ)
	if t == nil {
		return fmt.Errorf("%w: %s QPs cannot go from %s to %s", ErrQPState, q.typ, from, to)
	}
	if missing := t.required[q.typ] &^ mask; missing != 0 {
		return fmt.Errorf("%w: %s to %s needs %s", ErrInvalidAttr, from, to, missing)
	}
	known := AttrState | AttrClass | AttrRate | t.required[q.typ] | t.optional[q.typ]
	if extra := mask &^ known; extra != 0 {
		return fmt.Errorf("%w: %s to %s does not accept %s; remove it from the mask",
			ErrInvalidAttr, from, to, extra)
	}
	if err := q.CheckAttr(a, mask); err != nil {
		return err
	}
	if err := q.checkBusy(from, mask); err != nil {
		return err
	}
	q.apply(a, mask)
	q.enter(now, from, to)
	return nil
}

// abandon moves the QP to RESET or ERR.
func (q *QP) abandon(to State, mask AttrMask) error {
	if extra := mask &^ AttrState; extra != 0 {
		return fmt.Errorf("%w: a change to %s accepts no other attribute, got %s", ErrInvalidAttr,
			to, extra)
	}
	if to == Reset {
		q.setState(Reset)
		q.reset()
		return nil
	}
	if q.State() == Err {
		q.flush() // work requests whose doorbell has not been handled yet
		return nil
	}
	q.dropAnswers()
	q.toErr()
	return nil
}

// FlushAll moves all QPs that have left RESET to ERR, because the port does not work any more.
func (e *Engine) FlushAll(now Time) {
	for i := range e.table.buckets {
		for _, q := range e.table.buckets[i].qps {
			if q != nil && q.State() != Reset {
				_ = q.Modify(now, &Attr{State: Err}, AttrState) // every state permits it
			}
		}
	}
}

func findTransition(from, to State, typ Type) *transition {
	for i := range transitions {
		t := &transitions[i]
		if t.from == from && t.to == to && (from != SQE || typ != RC) {
			return t
		}
	}
	return nil
}

// checkBusy rejects changes in SQD that would affect requests in progress: the send queue must be
// drained (IBA 10.3.1.5), and the peer's READs must be answered before their limit changes.
func (q *QP) checkBusy(from State, mask AttrMask) error {
	const live = AttrState | AttrPath | AttrAccess | AttrMinRNRTimer | AttrCongestion | AttrClass |
		AttrRate
	switch {
	case from != SQD || mask&^live == 0:
	case !q.drained():
		return fmt.Errorf("%w: %s can change only after the send queue has drained; "+
			"wait for EventSQDrained", ErrQPState, mask&^live)
	case mask&AttrMaxDestRdAtomic != 0 && !q.answers.empty():
		return fmt.Errorf("%w: the peer's READs are still being answered; try again", ErrQPState)
	}
	return nil
}

// CheckAttr checks the ranges of attributes. With AttrPathMTU, only the owner of the engine may
// call it.
func (q *QP) CheckAttr(a *Attr, mask AttrMask) error {
	bad := func(f string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalidAttr, fmt.Sprintf(f, args...))
	}
	has := func(m AttrMask) bool { return mask&m != 0 }
	if has(AttrClass) {
		if err := CheckClass(int(a.Class)); err != nil {
			return err
		}
	}
	if has(AttrRate) {
		if err := checkRate(a.Rate, a.Burst); err != nil {
			return err
		}
	}
	switch {
	case has(AttrPathMTU) && !a.PathMTU.Valid():
		return bad("path MTU is %d, want 256, 512, 1024, 2048 or 4096", a.PathMTU)
	case has(AttrPathMTU) && a.PathMTU > q.eng.portMTU:
		return bad("path MTU is %d, the port carries %d", a.PathMTU, q.eng.portMTU)
	case has(AttrRQPSN) && a.RQPSN > psnMask, has(AttrSQPSN) && a.SQPSN > psnMask:
		return bad("a PSN has 24 bits")
	case has(AttrDestQPN) && a.DestQPN > psnMask:
		return bad("a QPN has 24 bits")
	case has(AttrPKey) && a.PKey&0x7fff == 0:
		return bad("P_Key is %#04x; its low 15 bits name the partition and must not be 0 (IBA 10.9.1)",
			uint16(a.PKey))
	case has(AttrAccess) && a.Access&^qpAccess != 0:
		return bad("access %s is not for QPs; use remote-write, remote-read, remote-atomic, "+
			"flush-global and flush-persistent", a.Access&^qpAccess)
	case has(AttrMaxRdAtomic) && a.MaxRdAtomic > MaxRdAtomic,
		has(AttrMaxDestRdAtomic) && a.MaxDestRdAtomic > MaxRdAtomic:
		return bad("MaxRdAtomic is %d, MaxDestRdAtomic is %d, want at most %d", a.MaxRdAtomic,
			a.MaxDestRdAtomic, MaxRdAtomic)
	case has(AttrMinRNRTimer) && a.MinRNRTimer > 31:
		return bad("MinRNRTimer is %d, want 0 to 31", a.MinRNRTimer)
	case has(AttrTimeout) && a.Timeout > 31:
		return bad("Timeout is %d, want 0 to 31", a.Timeout)
	case has(AttrRetryCnt) && a.RetryCnt > 7, has(AttrRNRRetry) && a.RNRRetry > 7:
		return bad("RetryCnt is %d, RNRRetry is %d, want 0 to 7", a.RetryCnt, a.RNRRetry)
	case has(AttrCongestion) && a.Congestion >= numCongestion:
		return bad("unknown congestion control %d", a.Congestion)
	case has(AttrPath) && !a.Path.Valid():
		return bad("the path is empty; use one from Device.ResolvePath")
	}
	return nil
}

// apply copies the selected attributes to where the engine uses them.
func (q *QP) apply(a *Attr, mask AttrMask) {
	set := func(m AttrMask, f func()) {
		if mask&m != 0 {
			f()
		}
	}
	at := &q.attr
	set(AttrPathMTU, func() { at.PathMTU = uint16(a.PathMTU); q.mtu.Store(uint32(a.PathMTU)) })
	set(AttrCongestion, func() { q.setCongestion(a.Congestion) }) // before SQPSN
	set(AttrQKey, func() { q.qkey = a.QKey })
	set(AttrRQPSN, func() { at.RQPSN = a.RQPSN; q.startResponder(a.RQPSN) })
	set(AttrSQPSN, func() { at.SQPSN = a.SQPSN; q.startRequester(a.SQPSN) })
	set(AttrDestQPN, func() { q.destQP = a.DestQPN })
	set(AttrAccess, func() { q.access = a.Access })
	set(AttrPKey, func() { q.pkey = a.PKey })
	set(AttrPath, func() { q.setPath(a.Path) })
	set(AttrMaxRdAtomic, func() { at.MaxRdAtomic = a.MaxRdAtomic; q.sizeReads() })
	set(AttrMaxDestRdAtomic,
		func() { at.MaxDestRdAtomic = a.MaxDestRdAtomic; q.sizeResources(a.MaxDestRdAtomic) })
	set(AttrMinRNRTimer, func() { at.MinRNRTimer = a.MinRNRTimer })
	set(AttrTimeout, func() { at.Timeout = a.Timeout; q.rec.timeout = a.Timeout })
	set(AttrRetryCnt, func() {
		at.RetryCnt, q.retries, q.rec.retryCnt = a.RetryCnt, a.RetryCnt, a.RetryCnt
	})
	set(AttrRNRRetry, func() {
		at.RNRRetry, q.rnrRetries, q.rec.rnrRetryCnt = a.RNRRetry, a.RNRRetry, a.RNRRetry
	})
	set(AttrSelective, func() { at.Selective = a.Selective })
	set(AttrClass, func() { q.setClass(a.Class) })
	set(AttrRate, func() { q.setRate(a.Rate, a.Burst) })
}

// enter performs the actions of a new state.
func (q *QP) enter(now Time, from, to State) {
	if from == to {
		return
	}
	q.setState(to)
	switch to {
	case SQD:
		q.drainEvent = true
		q.checkDrained()
	case RTS:
		q.eng.schedule(q)
	}
}

// Query returns the state and the attributes as last set.
func (q *QP) Query() Attr {
	at := &q.attr
	rate, burst := q.rateLimit()
	return Attr{
		State: q.State(), PathMTU: bth.MTU(at.PathMTU), QKey: q.qkey, RQPSN: at.RQPSN,
		SQPSN: at.SQPSN, DestQPN: q.destQP,
		Access: q.access, PKey: q.pkey, Path: q.fullPath(), MaxRdAtomic: at.MaxRdAtomic,
		MaxDestRdAtomic: at.MaxDestRdAtomic,
		MinRNRTimer:     at.MinRNRTimer, Timeout: at.Timeout, RetryCnt: at.RetryCnt,
		RNRRetry: at.RNRRetry, Selective: at.Selective, Congestion: at.Congestion,
		Class: q.Class(), Rate: rate, Burst: burst,
	}
}
