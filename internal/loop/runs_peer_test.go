package loop

import (
	"math/rand/v2"
	"slices"

	"github.com/gorxe/gorxe/bth"
)

// longestMessage is the longest message of a receivePeer, packets.
const longestMessage = 40

// receivePeer makes the packets of the peer of one QP: SENDs, WRITEs and responses to READs.
type receivePeer struct {
	rnd   *rand.Rand
	key   bth.RKey
	qpn   bth.QPN
	made  []peerPacket // requests, in the order of their PSNs
	at    int          // index in made of the next request
	write bool         // the latest request is a WRITE
	left  int          // bytes of the latest message that were not sent yet
	reads []peerRead   // to be answered
}

// peerPacket is a packet before it becomes a frame.
type peerPacket struct {
	h         bth.BTHFields
	extension []byte
	payload   int // bytes, without the pad
}

// peerRead is a READ request that the peer has received.
type peerRead struct {
	psn   bth.PSN // of the next response
	first bool    // no response was sent yet
	left  int     // bytes that were not sent yet
}

// next returns the next packet. Responses seldom interrupt a message.
func (p *receivePeer) next() peerPacket {
	if len(p.reads) > 0 {
		begun := !p.reads[0].first
		if (begun || p.rnd.IntN(3) == 0) && (p.left == 0 || p.rnd.IntN(10) == 0) {
			return p.respond()
		}
	}
	if p.at == len(p.made) {
		p.made = append(p.made, p.request())
	}
	p.at++
	return p.made[p.at-1]
}

// request makes the next packet of a SEND or WRITE. The last one of a message may be short.
func (p *receivePeer) request() (r peerPacket) {
	first := p.left == 0
	if first {
		p.left = 1 + p.rnd.IntN(longestMessage)*receiveMTU + p.rnd.IntN(2)*(receiveMTU-1)
		p.write = p.rnd.IntN(2) == 0
	}
	opcodes := &[4]bth.Opcode{bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast, bth.RCSendOnly}
	if p.write {
		opcodes = &[4]bth.Opcode{bth.RCWriteFirst, bth.RCWriteMiddle, bth.RCWriteLast,
			bth.RCWriteOnly}
	}
	if p.write && first {
		r.extension = make([]byte, bth.RETHLen)
		bth.PutRETH(r.extension, uint64(p.rnd.IntN(1000)), p.key, uint32(p.left))
	}
	psn := bth.PSN(receivedPSN).Add(uint32(len(p.made)))
	p.fill(&r, opcodes, psn, first, &p.left)
	r.h.AckReq = p.rnd.IntN(8) == 0
	return r
}

// respond makes the next response to a READ.
func (p *receivePeer) respond() (r peerPacket) {
	read := &p.reads[0]
	first := read.first
	p.fill(&r, &[4]bth.Opcode{bth.RCReadResponseFirst, bth.RCReadResponseMiddle,
		bth.RCReadResponseLast, bth.RCReadResponseOnly}, read.psn, first, &read.left)
	if first || read.left == 0 {
		r.extension = make([]byte, bth.AETHLen)
		bth.PutAETH(r.extension, bth.ACKNoLimit, 0)
	}
	if read.first, read.psn = false, read.psn.Next(); read.left == 0 {
		p.reads = p.reads[1:]
	}
	return r
}

// fill sets the header and the length of a packet of a message, of which left bytes remain. The
// opcodes are those of first, middle, last and only packets.
func (p *receivePeer) fill(r *peerPacket, opcodes *[4]bth.Opcode, psn bth.PSN, first bool,
	left *int) {
	r.payload = min(*left, receiveMTU)
	*left -= r.payload
	position := 1
	switch last := *left == 0; {
	case first && last:
		position = 3
	case first:
		position = 0
	case last:
		position = 2
	}
	r.h = bth.BTHFields{Opcode: opcodes[position], PKey: bth.DefaultPKey, DestQP: p.qpn, PSN: psn,
		PadCount: uint8(-r.payload & 3)}
}

// heed receives a packet of the QP, from the BTH on: a READ request, an ACK or a NAK. After a NAK,
// and now and then after an ACK, the peer sends again what is not acknowledged.
func (p *receivePeer) heed(b []byte) {
	switch h, body := bth.BTH(b), b[bth.HeaderLen:]; h.Opcode() {
	case bth.RCReadRequest:
		// A retransmitted request replaces all from there on.
		again := func(r peerRead) bool { return !r.psn.Before(h.PSN()) }
		p.reads = slices.DeleteFunc(p.reads, again)
		p.reads = append(p.reads, peerRead{h.PSN(), true, int(bth.RETH(body).DMALen())})
	case bth.RCAck:
		next, again := int(h.PSN().Sub(receivedPSN)), true
		if bth.AETH(body).Syndrome().Kind() == bth.SyndromeACK {
			next, again = next+1, p.rnd.IntN(8) == 0
		}
		if again {
			p.at = max(0, min(p.at, next))
		}
	}
}
