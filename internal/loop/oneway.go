package loop

import "github.com/gorxe/gorxe/bth"

// oneWay detects one-way streams of small WRITEs, whose frames are coalesced like those in the
// middle of a long message.
//
// A small WRITE completes nothing at the receiver, and often requests no ACK. But the program may
// poll the memory and respond. So WRITEs are coalesced only while the program posts nothing. Peers
// that keep few WRITEs in flight request ACKs often: the first few WRITEs behind such a packet are
// not coalesced. And if a delay brings too few frames several times in a row, the stream has to
// prove itself again.
//
// The cost: a program that only polls sees a WRITE up to coalesceOneWay later, in a stream that
// brings several WRITEs in that time.
type oneWay struct {
	writes   int  // since a local post or too many failures; saturates
	unasked  int  // WRITEs since the peer requested an ACK; saturates
	failures int  // delays in a row that brought too few frames
	active   bool // the latest packet belongs to a one-way stream
}

// small records a message of one packet.
func (o *oneWay) small(p *bth.Packet) {
	switch {
	case p.BTH.AckReq():
		o.unasked = 0
	case p.Info.Op == bth.OpWrite && !p.Info.HasImm:
		o.writes = min(o.writes+1, oneWayWrites)
		o.unasked = min(o.unasked+1, oneWayUnasked)
		o.active = o.writes == oneWayWrites && o.unasked == oneWayUnasked
	}
}

// posted records that the local program has posted work requests.
func (o *oneWay) posted() { o.writes = 0 }

// result records how many frames a delay has brought.
func (o *oneWay) result(n int) {
	switch {
	case n >= oneWayFrames:
		o.failures = 0
	case o.failures < oneWayFailures:
		o.failures++
	default:
		o.failures, o.writes = 0, 0
	}
}
