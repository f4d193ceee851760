package roce

import "github.com/gorxe/gorxe/bth"

// A one-way stream of small WRITEs: frames are gathered in it as in the midst of a long message, for the same reason (see gatherer), and there, too,
// nobody may be kept waiting. A WRITE completes nothing here, and its sender does not ask for an ACK. But the program may look at the
// memory and answer. So WRITEs are gathered only while it posts nothing: it does not answer. Peers with a few WRITEs under way ask for
// an ACK often: the first few behind such a packet are not gathered. And if too few come together, frames are taken
// one by one for as long as at the beginning.
//
// What it costs: a program that only looks sees a WRITE up to gatherAlone later, in a stream that brings several in that time, and whose
// sender sends them some thirty at a time.
const (
	aloneEnough = 128 // WRITEs without a post of the program's
	askedEnough = 8   // WRITEs without a request for an ACK
	fruitful    = 3   // frames that have to come together,
	maxVain     = 3   // or it was in vain, which it may be so often in a row
)

// oneway finds one-way streams.
type oneway struct {
	alone   int  // WRITEs since the program posted something, or since gathering was in vain; counts no further than needed
	unasked int  // WRITEs since the peer asked for an ACK; likewise
	vain    int  // times in a row
	stream  bool // the packet handled last belongs to one, and nobody waits for it
}

// ended is told of each message of one packet.
func (o *oneway) ended(p *bth.Packet) {
	switch {
	case p.BTH.AckReq():
		o.unasked = 0
	case p.Info.Op == bth.OpWrite && !p.Info.HasImm:
		o.alone = min(o.alone+1, aloneEnough)
		o.unasked = min(o.unasked+1, askedEnough)
		o.stream = o.alone == aloneEnough && o.unasked == askedEnough
	}
}

// posted is told that the program has posted something.
func (o *oneway) posted() { o.alone = 0 }

// gathered is told what a time of gathering has brought.
func (o *oneway) gathered(n int) {
	switch {
	case n >= fruitful:
		o.vain = 0
	case o.vain < maxVain:
		o.vain++
	default:
		o.vain, o.alone = 0, 0
	}
}
