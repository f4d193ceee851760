package cm

import "github.com/gorxe/gorxe/bth"

// Limits are what the passive side offers for a connection.
type Limits struct {
	MTU                bth.MTU // largest path MTU
	ResponderResources uint8   // READs and atomics that it accepts at a time
	InitiatorDepth     uint8   // READs and atomics that it wants to have outstanding
	RNRRetry           uint8   // for the peer's QP
	SRQ                bool
	Features           Features // that the local QP supports
	PrivateLen         int      // bytes of private data that the REP will have
}

// Negotiate returns the largest values for a REP that the request and l allow. The caller adds QPN,
// PSN and private data. A REP cannot lower the path MTU, so a request above l.MTU must be refused:
// then ok is false, and RejectMTU returns the arguments for Reject (IBA 12.6.7.2).
func (r *Request) Negotiate(l Limits) (p AcceptParams, ok bool) {
	features := l.Features & r.Features
	if !trailerFits(l.PrivateLen, REPPrivateLen) {
		features = 0
	}
	return AcceptParams{
		// Each side must accept what the other side has outstanding (IBA 12.7).
		ResponderResources: min(l.ResponderResources, r.InitiatorDepth),
		InitiatorDepth:     min(l.InitiatorDepth, r.ResponderResources),
		RNRRetry:           min(l.RNRRetry, maxRetryCount),
		FlowControl:        r.FlowControl,
		SRQ:                l.SRQ,
		Features:           features,
	}, r.MTU <= l.MTU
}

// RejectMTU returns the reason and the additional information of a REJ that names the largest path
// MTU.
func RejectMTU(largest bth.MTU) (Reason, []byte) {
	return ReasonInvalidMTU, []byte{largest.Enum()}
}

// RejectedMTU returns the path MTU that a peer's REJ proposes for another attempt, or 0.
func (e *Event) RejectedMTU() bth.MTU {
	if e.Kind != EventRejected || e.Reason != ReasonInvalidMTU || len(e.Info) == 0 {
		return 0
	}
	return bth.MTUFromEnum(e.Info[0])
}

// QPAttributes are the attributes of the local QP for RTR and RTS. The starting PSN in a message is
// the PSN with which its receiver starts to send (IBA 12.7.31), so the sender of the message
// expects it first.
type QPAttributes struct {
	RemoteQPN       bth.QPN
	RQPSN           bth.PSN // first PSN to expect
	SQPSN           bth.PSN // first PSN to send
	MTU             bth.MTU
	MaxRdAtomic     uint8 // outstanding READs and atomics as requester
	MaxDestRdAtomic uint8 // outstanding READs and atomics as responder
	Timeout         uint8 // Local ACK Timeout, exponent
	RetryCount      uint8
	RNRRetry        uint8
	Features        Features // that the connection uses
}

// PassiveQP returns the attributes for the side that accepts the request with a. The requester
// chooses the Local ACK Timeout, because it knows the path (IBA 12.7.34). It is limited to
// MaxAckTimeout, which also replaces 0 (never).
func (r *Request) PassiveQP(a *AcceptParams) QPAttributes {
	return QPAttributes{
		RemoteQPN: r.QPN, RQPSN: a.PSN, SQPSN: r.PSN, MTU: r.MTU,
		MaxRdAtomic: a.InitiatorDepth, MaxDestRdAtomic: a.ResponderResources,
		Timeout: boundAckTimeout(r.AckTimeout), RetryCount: r.RetryCount, RNRRetry: r.RNRRetry,
		Features: a.Features,
	}
}

func boundAckTimeout(t uint8) uint8 {
	if t == 0 || t > MaxAckTimeout {
		return MaxAckTimeout
	}
	return t
}

// ActiveQP returns the attributes for the side that sent the request p and received the response r.
// If the peer's ACK delay is longer than the Local ACK Timeout, it replaces it, up to
// MaxAckTimeout.
func (p *ConnectParams) ActiveQP(r *Response) QPAttributes {
	timeout := p.AckTimeout
	if timeout == 0 {
		timeout = DefaultAckTimeout
	}
	return QPAttributes{
		RemoteQPN: r.QPN, RQPSN: p.PSN, SQPSN: r.PSN, MTU: p.MTU,
		// A peer must not raise what was requested.
		MaxRdAtomic:     min(p.InitiatorDepth, r.ResponderResources),
		MaxDestRdAtomic: min(p.ResponderResources, r.InitiatorDepth),
		Timeout:         max(timeout, min(r.AckDelay, MaxAckTimeout)),
		RetryCount:      p.RetryCount,
		RNRRetry:        r.RNRRetry,
		Features:        r.Features,
	}
}

// AckTimeout returns the Local ACK Timeout for a path: twice its packet lifetime plus the peer's
// ACK delay, all as exponents of 4.096 us x 2^t (IBA 12.7). The sum is rounded to the larger term,
// or to twice the larger term if the smaller one is at least half of it.
func AckTimeout(packetLifeTime, ackDelay uint8) uint8 {
	there, delay := packetLifeTime+1, ackDelay
	larger, smaller := max(there, delay), min(there, delay)
	if smaller+1 >= larger {
		larger++
	}
	return min(larger, maxExponent)
}
