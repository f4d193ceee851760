package cm

import "github.com/gorxe/gorxe/bth"

// Limits are what a passive side offers for a connection.
type Limits struct {
	MTU                bth.MTU // the largest that the path bears
	ResponderResources uint8   // READs and atomics that it serves at a time
	InitiatorDepth     uint8   // READs and atomics that it wants to have outstanding
	RNRRetry           uint8   // of the peer's QP
	SRQ                bool
}

// Negotiate gives the largest values for a REP that both the request and l allow; QPN, PSN and
// private data are the caller's to add. A REP cannot lower the path MTU, so a request beyond l.MTU
// has to be refused: ok is false, and RejectMTU says with which words (IBA 12.6.7.2).
func (r *Request) Negotiate(l Limits) (p AcceptParams, ok bool) {
	return AcceptParams{
		// What one end has outstanding, the other has to serve (IBA 12.7).
		ResponderResources: min(l.ResponderResources, r.InitiatorDepth),
		InitiatorDepth:     min(l.InitiatorDepth, r.ResponderResources),
		RNRRetry:           min(l.RNRRetry, maxRetryCount),
		FlowControl:        r.FlowControl,
		SRQ:                l.SRQ,
	}, r.MTU <= l.MTU
}

// RejectMTU gives the reason and the additional information for a REJ that names the largest path
// MTU that will do.
func RejectMTU(largest bth.MTU) (Reason, []byte) {
	return ReasonInvalidMTU, []byte{largest.Enum()}
}

// RejectedMTU is the path MTU that a peer's REJ named, 0 if it named none: dial again with that.
func (e *Event) RejectedMTU() bth.MTU {
	if e.Kind != EventRejected || e.Reason != ReasonInvalidMTU || len(e.Info) == 0 {
		return 0
	}
	return bth.MTUFromEnum(e.Info[0])
}

// QPAttributes are what the local QP needs for RTR and RTS. The starting PSN in a message is where its receiver shall
// begin to send (IBA 12.7.31), so it is the first that the message's sender expects.
type QPAttributes struct {
	RemoteQPN       bth.QPN
	RQPSN           bth.PSN // the first to expect
	SQPSN           bth.PSN // the first to send
	MTU             bth.MTU
	MaxRdAtomic     uint8 // outstanding READs and atomics as requester
	MaxDestRdAtomic uint8 // as responder
	Timeout         uint8 // Local ACK Timeout, exponent
	RetryCount      uint8
	RNRRetry        uint8
}

// PassiveQP is for the side that got the request and accepts it with a. The Local ACK Timeout is the requester's to
// choose (IBA 12.7.34: it knows the path); it is taken up to MaxAckTimeout, and 0, which would be never, for that.
func (r *Request) PassiveQP(a *AcceptParams) QPAttributes {
	return QPAttributes{
		RemoteQPN: r.QPN, RQPSN: a.PSN, SQPSN: r.PSN, MTU: r.MTU,
		MaxRdAtomic: a.InitiatorDepth, MaxDestRdAtomic: a.ResponderResources,
		Timeout: boundAckTimeout(r.AckTimeout), RetryCount: r.RetryCount, RNRRetry: r.RNRRetry,
	}
}

func boundAckTimeout(t uint8) uint8 {
	if t == 0 || t > MaxAckTimeout {
		return MaxAckTimeout
	}
	return t
}

// ActiveQP is for the side that sent the request p and got the response r. A peer that needs longer for its ACKs than the
// Local ACK Timeout lengthens it, up to MaxAckTimeout.
func (p *ConnectParams) ActiveQP(r *Response) QPAttributes {
	timeout := p.AckTimeout
	if timeout == 0 {
		timeout = DefaultAckTimeout
	}
	return QPAttributes{
		RemoteQPN: r.QPN, RQPSN: p.PSN, SQPSN: r.PSN, MTU: p.MTU,
		// A peer must not raise what was asked for; one that does is held to it.
		MaxRdAtomic:     min(p.InitiatorDepth, r.ResponderResources),
		MaxDestRdAtomic: min(p.ResponderResources, r.InitiatorDepth),
		Timeout:         max(timeout, min(r.AckDelay, MaxAckTimeout)),
		RetryCount:      p.RetryCount,
		RNRRetry:        r.RNRRetry,
	}
}

// AckTimeout is the Local ACK Timeout for a path: twice its life time and the far end's ACK delay,
// all exponents of 4.096 us x 2^t (IBA 12.7). The sum is rounded to the larger term, or to twice
// that if the smaller is half of it or more.
func AckTimeout(packetLifeTime, ackDelay uint8) uint8 {
	there, delay := packetLifeTime+1, ackDelay
	larger, smaller := max(there, delay), min(there, delay)
	if smaller+1 >= larger {
		larger++
	}
	return min(larger, maxExponent)
}
