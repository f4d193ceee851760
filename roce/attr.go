package roce

import (
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// QPType is the transport service of a QP (ibv_qp_type).
type QPType uint8

// The transport services.
const (
	RC QPType = iota // reliable connection
	UC               // unreliable connection
	UD               // unreliable datagram
)

// String returns "RC", "UC" or "UD".
func (t QPType) String() string { return qp.Type(t).String() }

// State is the state of a QP (ibv_qp_state). Dial, Accept, QP.Connect and QP.Activate move a QP to
// StateRTS.
type State uint8

// The states.
const (
	StateReset State = iota
	StateInit        // receives can be posted
	StateRTR         // ready to receive
	StateRTS         // ready to send
	StateSQD         // send queue drained, or draining
	StateSQE         // send queue in error (UC, UD)
	StateErr         // work requests complete with WRFlushErr
)

// String returns the name of the state, for example "RTS".
func (s State) String() string { return qp.State(s).String() }

// Access is a set of access rights of a memory region, window or QP (ibv_access_flags). Local
// reading is always allowed.
type Access uint16

// The access rights.
const (
	LocalWrite       Access = 1 << iota // receives, READs and atomics may store their results
	RemoteWrite                         // peers may WRITE; needs LocalWrite
	RemoteRead                          // peers may READ
	RemoteAtomic                        // peers may use atomics; needs LocalWrite
	MWBind                              // memory windows may be bound to the region
	ZeroBased                           // the first byte has address 0
	RemoteInvalidate                    // the peer's OpSendInv may invalidate the R_Key
	_
	FlushGlobal     // peers may use OpFlush with PlaceGlobal
	FlushPersistent // peers may use OpFlush with PlacePersistent; see WithPersist
)

// String lists the rights, for example "local-write,remote-write".
func (a Access) String() string { return mr.Access(a).String() }

// Attr holds the attributes of a QP for QP.Modify and QP.Query (ibv_qp_attr).
type Attr struct {
	State        State
	PathMTU      MTU
	QKey         QKey // UD
	RQPSN, SQPSN PSN  // first PSN expected, first PSN sent
	DestQPN      QPN
	Access       Access // rights of the peer: remote ones only
	PKey         PKey
	Path         Path // Device.ResolvePath returns one

	MaxRdAtomic     uint8 // outstanding READs and atomics of this side, at most MaxRdAtomic
	MaxDestRdAtomic uint8 // outstanding READs and atomics of the peer, at most MaxRdAtomic

	MinRNRTimer uint8 // timer code of RNR NAKs, 0 to 31 (IBA 9.7.5.2.8)
	Timeout     uint8 // Local ACK Timeout, 4.096 us << n, n up to 31; 0: never
	RetryCnt    uint8 // retries after timeouts, 0 to 7
	RNRRetry    uint8 // retries after RNR NAKs, 0 to 6; 7: no limit

	Selective  bool              // RC: use selective repeat; both sides must agree
	Congestion CongestionControl // RC: what limits this side's packets
	Class      uint8             // traffic class, 0 to 7; Path has its DSCP
	Rate       uint64            // bytes of frames per second; 0: no limit
	Burst      int               // bytes that may be sent at once after a pause
}

// AttrMask selects fields of an Attr (ibv_qp_attr_mask).
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

// String lists the names of the attributes.
func (m AttrMask) String() string { return qp.AttrMask(m).String() }
