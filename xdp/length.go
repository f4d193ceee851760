//go:build linux

package xdp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// The length of the packets of a run.
//
// The kernel knows it (skb_shinfo(skb)->gso_size), but generic XDP does not pass it on. It follows
// from the first packet: its ICRC is correct at the right length only. find tries the lengths of
// recent runs and those that the first opcode allows. Only for opcodes with any length it then
// searches for a second BTH. The ICRC is computed only at lengths after which a BTH may begin.

const (
	recentLengths = 4
	// maxTries limits the ICRCs computed for a frame.
	maxTries = 16
)

// find returns the length of the packets of a run, or 0 if the frame is not a run. b is the start
// of the frame. It changes the headers in b.
func (s *splitter) find(r *run, b []byte) int {
	f := finder{splitter: s, run: r, b: b, data: b[r.end:], tries: maxTries}
	for _, n := range s.lengths {
		if f.is(n, false) {
			return n
		}
	}
	n := f.search()
	if n > 0 {
		s.lengths[s.oldest] = n
		s.oldest = (s.oldest + 1) % recentLengths
	}
	return n
}

type finder struct {
	*splitter
	*run
	b, data []byte
	tries   int
}

// search tries lengths that are not known from other runs.
func (f *finder) search() int {
	info := bth.Opcode(f.data[0]).Info()
	head := int(info.HeaderLen) + bth.ICRCLen
	switch {
	case !info.Known:
		return 0
	case info.HasPayload && !info.End: // the payload is the path MTU
		for m := minPathMTU; m <= maxPathMTU; m *= 2 {
			if f.is(head+m, false) {
				return head + m
			}
		}
		return 0
	case info.Op == bth.OpWrite && info.Start && len(f.data) >= int(info.HeaderLen):
		length := bth.RETH(f.data[info.RETH:][:bth.RETHLen]).DMALen()
		if n := head + int(min(length, maxPathMTU)+3)&^3; f.is(n, false) {
			return n
		}
		return 0
	case f.is(head, false): // no payload
		return head
	case f.total <= maxPacket && (head == f.total || f.correct(f.total)):
		return 0 // one packet
	}
	// The next BTH probably has the same P_Key. The P_Key makes bytes of a payload that look like
	// a BTH improbable.
	for _, key := range []bool{true, false} {
		for n := minPacket; n <= maxPacket && n < f.total; n += 4 {
			if f.is(n, key) {
				return n
			}
		}
	}
	return 0
}

// is reports whether the packets have length n. key requires that the second packet has the P_Key
// of the first one.
func (f *finder) is(n int, key bool) bool {
	if n < minPacket || n > maxPacket || n+bth.HeaderLen > len(f.data) {
		return false
	}
	next := f.data[n:]
	if !bth.Opcode(next[0]).Info().Known || bth.BTH(next).Version() != 0 || next[8]&0x7f != 0 ||
		key && (binary.BigEndian.Uint16(next[2:])^binary.BigEndian.Uint16(f.data[2:]))<<1 != 0 {
		return false
	}
	if f.total > n*maxRun {
		return false
	}
	if last := f.total % n; last%4 != 0 || last != 0 && last < minPacket {
		return false
	}
	return f.correct(n)
}

// correct reports whether the ICRC of a first packet of length n is correct.
func (f *finder) correct(n int) bool {
	if f.tries == 0 {
		return false
	}
	f.tries--
	f.put(f.b, n, f.id)
	return f.decoder.Decode(f.b[:f.end+n], &f.packet) == frame.ReasonOK
}
