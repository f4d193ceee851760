package qp

import (
	"math/bits"
	"slices"
)

// Selective repeat (see docs/selective-repeat.md): the peer holds packets that arrive out of order
// and reports them, and the requester retransmits only what is missing. The requester keeps a
// scoreboard of the packets in flight while any of them is held or lost. Without losses there is
// none, and the requester works like one with go-back-N.
//
// A packet is lost when one that was sent at least QP.tolerance transmissions later is known to
// have arrived (like RACK, RFC 8985, but in packets instead of time).
const (
	minTolerance = 3       // transmissions; initial value of QP.tolerance
	maxTolerance = 1 << 12 // transmissions
	// minToleranceLimit is the limit for small windows. That for others is part of the window.
	minToleranceLimit = 32
	decayWindows      = 16 // windows of packets after which tolerance decreases
	// selectiveSpan limits the packets from the oldest missing one to the newest, which is more
	// than the window while packets are held.
	selectiveSpan = 1 << 16

	minSlots      = 256      // packets on a new scoreboard
	maxBoardBytes = 16 << 20 // memory of unused scoreboards that an engine keeps
)

// scoreboard is what the requester knows about the packets in flight, from una to max.
type scoreboard struct {
	// The rings are indexed by the count of the packet. Their length is a power of two and covers
	// all packets in flight.
	slots    []uint32 // latest transmission; see slot
	heldBits []uint64
	lostBits []uint64

	held uint32 // packets that the peer holds, or READ responses that arrived
	lost uint32 // packets to retransmit
	news uint32 // packets that were found delivered since the last call of settle

	scan     uint64 // no packet before it is lost
	executed uint64 // the responder has executed all requests before it
	piece    uint64 // READ responses before it were requested in pieces; see repairedRun
	againEnd uint64 // packets from it on were sent once
	againAt  Time   // time of the last retransmission

	guess   uint64 // READ response that was found lost; 0: none
	guessAt Time   // when it was requested again; 0: not yet

	tracks [2]track // of request packets and of responses
	reads  []readRequest
	asked  uint32 // retransmissions since the last one with AckReq
	probe  bool   // send the oldest packet now, whatever the window
	early  bool   // the ACK that is being handled answers a packet from before the last probe

	halted bool // a work request failed, and waits until it is the oldest

	lostAgain bool // settle has found a response lost that had been requested again

	// no READ before WQE apart must write to the memory of apart first; see overlaps
	apart   uint32
	isApart bool
	// likewise, no READ of one packet before WQE ordered lacks its response; see missingBefore
	ordered   uint32
	isOrdered bool
	orderedAt Time // when responses were last dropped for their order, and lost with them

	shared bool // some READs write to the same memory; see superseded
}

// lateness is when QP.tolerance changed.
type lateness struct {
	decayAt uint64 // when una reaches it, tolerance decreases
	grownAt Time   // when it doubled
}

// track is the order of transmissions in one direction. Serial numbers count transmissions, modulo
// 2^30.
type track struct {
	log        []uint32 // ring: the low bits of the packet of each transmission
	tail, head uint32   // serials; what was sent before tail is delivered or lost
	high       uint32   // serial after the newest transmission that is known to have arrived
	sure       uint32   // what was sent before it is delivered or lost
	probe      uint32   // serial of the last probe
	probing    bool     // there is no answer to it yet
}

// readRequest is a request packet that has responses of its own. Its PSN is that of the first
// response, so the scoreboard's slots do not hold its serial.
type readRequest struct {
	psn    uint64
	serial uint32 // in the track of request packets
	held   bool   // the peer holds it
	again  bool   // it was a retransmission
}

// A slot holds the serial of the latest transmission of a packet, and these bits. For the response
// to a READ, the transmission is that of the request.
const (
	slotResponse  = 1 << iota // the serial belongs to the track of responses
	slotAgain                 // it was a retransmission
	slotBits      = iota
	slotBoth      = slotResponse | slotAgain
	serialMask    = 1<<(32-slotBits) - 1
	requestTrack  = 0
	responseTrack = 1
	logRead       = 1 << 31 // log: the request of a READ, which is in reads
)

// openScoreboard returns the QP's scoreboard. It records the packets in flight, which were sent
// once and in order.
func (q *QP) openScoreboard() *scoreboard {
	if q.win.repairing {
		return q.cc.board
	}
	e := q.eng
	var b *scoreboard
	if n := len(e.boards); n > 0 {
		b, e.boards = e.boards[n-1], e.boards[:n-1]
		e.boardBytes -= b.bytes()
	} else {
		b = &scoreboard{}
		b.grow(0, 0, minSlots)
	}
	b.scan, b.executed, b.againEnd = q.una, q.una, q.una
	q.model().board, q.win.repairing = b, true
	s := &q.sq
	for i := s.tail.Load(); i != s.started; i++ {
		w := s.at(i)
		from, to := max(w.psn, q.una), min(w.psn+uint64(w.npkts), q.max)
		switch {
		case from >= to:
		case w.op < OpRead:
			for p := from; p < to; p++ {
				b.sentRequest(q.una, p, false)
			}
		default:
			for p := from; p < to; {
				_, end := w.partOf(p)
				b.sentRead(q.una, p, min(end, to)-p, false)
				p = end
			}
		}
	}
	return b
}

// closeScoreboard gives the scoreboard back to the engine.
func (q *QP) closeScoreboard() {
	if !q.win.repairing {
		return
	}
	b, e := q.cc.board, q.eng
	q.cc.board, q.win.repairing = nil, false
	if n := b.bytes(); e.boardBytes+n <= maxBoardBytes {
		clear(b.heldBits)
		clear(b.lostBits)
		*b = scoreboard{slots: b.slots, heldBits: b.heldBits, lostBits: b.lostBits,
			reads: b.reads[:0], tracks: [2]track{{log: b.tracks[0].log}, {log: b.tracks[1].log}}}
		e.boards = append(e.boards, b)
		e.boardBytes += n
	}
}

// bytes returns the memory of the rings.
func (b *scoreboard) bytes() int {
	return 4*(len(b.slots)+len(b.tracks[0].log)+len(b.tracks[1].log)) + 16*len(b.heldBits)
}

// grow makes the rings large enough for n packets from una on; those up to end are in use.
func (b *scoreboard) grow(una, end uint64, n int) {
	old := *b
	size := max(minSlots, len(old.slots))
	for size < n {
		size *= 2
	}
	b.slots = make([]uint32, size)
	b.heldBits, b.lostBits = make([]uint64, size/64), make([]uint64, size/64)
	for p := una; p < end; p++ {
		*b.slot(p) = *old.slot(p)
		if old.isHeld(p) {
			b.heldBits[b.at(p)] |= 1 << (p % 64)
		}
		if old.isLost(p) {
			b.lostBits[b.at(p)] |= 1 << (p % 64)
		}
	}
}

func (b *scoreboard) slot(p uint64) *uint32 { return &b.slots[p&uint64(len(b.slots)-1)] }

// at returns the index of the bitmap word of a packet.
func (b *scoreboard) at(p uint64) uint64 { return p / 64 & uint64(len(b.heldBits)-1) }

func (b *scoreboard) isHeld(p uint64) bool { return b.heldBits[b.at(p)]>>(p%64)&1 != 0 }

func (b *scoreboard) isLost(p uint64) bool { return b.lostBits[b.at(p)]>>(p%64)&1 != 0 }

// sentRequest records the transmission of a SEND or WRITE packet.
func (b *scoreboard) sentRequest(una, p uint64, again bool) {
	b.record(una, p, requestTrack, again)
}

// sentRead records the transmission of a request with n responses.
func (b *scoreboard) sentRead(una, p, n uint64, again bool) {
	b.reserve(una, p+n)
	serial := b.tracks[requestTrack].push(logRead, len(b.slots))
	if p >= b.executed {
		b.reads = slices.DeleteFunc(b.reads, func(r readRequest) bool { return r.psn == p })
		b.reads = append(b.reads, readRequest{psn: p, serial: serial, again: again})
	}
	for i := range n {
		b.record(una, p+i, responseTrack, again)
	}
}

func (b *scoreboard) reserve(una, end uint64) {
	if n := int(end - una); n > len(b.slots) {
		b.grow(una, una+uint64(len(b.slots)), n)
	}
}

// record notes a transmission of packet p.
func (b *scoreboard) record(una, p uint64, track uint32, again bool) {
	b.reserve(una, p+1)
	v := b.tracks[track].push(uint32(p)&psnMask, len(b.slots))<<slotBits | track
	if again {
		v |= slotAgain
		b.againEnd = max(b.againEnd, p+1)
	}
	*b.slot(p) = v
}

// push appends a transmission to the log and returns its serial. The log never has more than twice
// as many entries as there are slots: the packet of an older entry was delivered or sent again.
func (t *track) push(entry uint32, slots int) uint32 {
	if n := t.head - t.tail; int(n) == len(t.log) {
		if len(t.log) >= 2*slots {
			t.tail++
		} else {
			t.grow()
		}
	}
	t.log[t.head&uint32(len(t.log)-1)] = entry
	t.head++
	return t.head - 1
}

func (t *track) grow() {
	old := t.log
	t.log = make([]uint32, max(minSlots, 2*len(old)))
	for s := t.tail; s != t.head; s++ {
		t.log[s&uint32(len(t.log)-1)] = old[s&uint32(len(old)-1)]
	}
}

// due reports whether a packet is to be retransmitted.
func (b *scoreboard) due() bool { return b.lost > 0 || b.probe }

// markLost marks a packet for retransmission.
func (b *scoreboard) markLost(p uint64) {
	b.lostBits[b.at(p)] |= 1 << (p % 64)
	b.lost++
	b.scan = min(b.scan, p)
}

func (b *scoreboard) unmarkLost(p uint64) {
	b.lostBits[b.at(p)] &^= 1 << (p % 64)
	b.lost--
}

// firstLost returns the lowest lost packet. There must be one.
func (b *scoreboard) firstLost() uint64 {
	for p := b.scan; ; p = p&^63 + 64 {
		if w := b.lostBits[b.at(p)] >> (p % 64); w != 0 {
			b.scan = p + uint64(bits.TrailingZeros64(w))
			return b.scan
		}
	}
}

// heldRun returns the end of the run of held packets that starts at p, at most end.
func (b *scoreboard) heldRun(p, end uint64) uint64 {
	for p < end {
		if w := ^b.heldBits[b.at(p)] >> (p % 64); w != 0 {
			return min(p+uint64(bits.TrailingZeros64(w)), end)
		}
		p = p&^63 + 64
	}
	return end
}

// forget clears the packets [from, to), which are acknowledged.
func (b *scoreboard) forget(from, to uint64) {
	for from < to {
		next := min(from&^63+64, to)
		mask := ^uint64(0) << (from % 64)
		if next%64 != 0 {
			mask &= 1<<(next%64) - 1
		}
		i := b.at(from)
		b.held -= uint32(bits.OnesCount64(b.heldBits[i] & mask))
		b.lost -= uint32(bits.OnesCount64(b.lostBits[i] & mask))
		b.heldBits[i] &^= mask
		b.lostBits[i] &^= mask
		from = next
	}
	b.scan = max(b.scan, to)
}

// partOf returns the PSNs of the READ request that asked for packet p: see QP.sendRead.
func (w *wqe) partOf(p uint64) (start, end uint64) {
	if w.op != OpRead {
		return w.psn, w.psn + uint64(w.npkts)
	}
	start = w.psn + (p-w.psn)>>w.part<<w.part
	return start, min(start+1<<w.part, w.psn+uint64(w.npkts))
}
