//go:build interop

package interop_test

import (
	"bytes"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/interop/peer"
	"github.com/gorxe/gorxe/roce"
)

// Scenarios with the raw peer, first with gorxe as requester, then as responder.

// oddGhostACKs: a repeated acknowledgment changes nothing (IBA 9.7.5.1: it is outside the
// outstanding PSNs).
func oddGhostACKs(o *oddRig) {
	p := o.gpsn
	for i := range 3 {
		o.post(uint64(i), roce.OpWrite, 0, 8)
		o.want(bth.RCWriteOnly, p.Add(uint32(i)))
		o.ack(p.Add(uint32(i)))
		o.done(uint64(i))
	}
	o.post(3, roce.OpWrite, 0, 8)
	o.want(bth.RCWriteOnly, p.Add(3))
	for _, old := range []bth.PSN{p, p.Add(2), p.Prev(), p.Add(1)} {
		o.ack(old)
		o.nak(old, bth.NAKRemoteAccess)
	}
	time.Sleep(5 * time.Millisecond)
	o.notDone()
	o.ack(p.Add(3))
	o.done(3)
}

// oddACKBeyond: packets that were not sent cannot be acknowledged.
func oddACKBeyond(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpWrite, 0, 8)
	o.want(bth.RCWriteOnly, p)
	for _, n := range []uint32{1, 2, 1000, 1 << 22} {
		o.ack(p.Add(n))
	}
	o.nak(p.Add(5), bth.NAKPSNSequence)
	time.Sleep(5 * time.Millisecond)
	o.notDone()
	o.ack(p)
	o.done(0)
	o.post(1, roce.OpWrite, 0, 8)
	o.want(bth.RCWriteOnly, p.Add(1))
	o.ack(p.Add(1))
	o.done(1)
}

// oddCoalescedACK: one acknowledgment covers all packets before it.
func oddCoalescedACK(o *oddRig) {
	for i := range 5 {
		o.post(uint64(i), roce.OpWrite, 0, 8)
	}
	o.want(bth.RCWriteOnly, o.gpsn.Add(4))
	o.ack(o.gpsn.Add(4))
	for i := range 5 {
		o.done(uint64(i))
	}
}

// oddImpliedNAKByACK: an ACK of a request after a READ, before the READ's response, means that the
// response was lost (IBA 9.7.5.1.1).
func oddImpliedNAKByACK(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpRead, 0, 100)
	o.post(1, roce.OpWrite, 1000, 8)
	o.want(bth.RCReadRequest, p)
	o.want(bth.RCWriteOnly, p.Add(1))
	o.ack(p.Add(1))
	o.want(bth.RCReadRequest, p) // retransmitted
	o.notDone()
	o.send(bth.RCReadResponseOnly, p, false, aeth(bth.ACKNoLimit, 1), pattern(5, 100))
	o.done(0)
	o.ack(p.Add(1))
	o.done(1)
	check(o.t, peer.Check(o.mr.Bytes()[:100], 5))
}

// oddImpliedNAKByRead: the second READ's response arrives, the first one's does not.
func oddImpliedNAKByRead(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpRead, 0, 100)
	o.post(1, roce.OpRead, 200, 100)
	o.want(bth.RCReadRequest, p.Add(1))
	o.send(bth.RCReadResponseOnly, p.Add(1), false, aeth(bth.ACKNoLimit, 2), pattern(6, 100))
	o.want(bth.RCReadRequest, p)
	o.notDone()
	o.send(bth.RCReadResponseOnly, p, false, aeth(bth.ACKNoLimit, 1), pattern(5, 100))
	o.done(0)
	o.want(bth.RCReadRequest, p.Add(1))
	o.send(bth.RCReadResponseOnly, p.Add(1), false, aeth(bth.ACKNoLimit, 2), pattern(6, 100))
	o.done(1)
	check(o.t, peer.Check(o.mr.Bytes()[:100], 5))
	check(o.t, peer.Check(o.mr.Bytes()[200:300], 6))
}

// oddImpliedACK: a READ response acknowledges all requests before the READ.
func oddImpliedACK(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpWrite, 0, 8)
	o.post(1, roce.OpRead, 200, 100)
	o.want(bth.RCReadRequest, p.Add(1))
	o.send(bth.RCReadResponseOnly, p.Add(1), false, aeth(bth.ACKNoLimit, 2), pattern(6, 100))
	o.done(0)
	o.done(1)
	check(o.t, peer.Check(o.mr.Bytes()[200:300], 6))
}

// oddPartialRead: half of a response is lost. The retry asks for the rest. Most responders answer
// it as a separate READ (FIRST-LAST, IBA 9.7.5.1.1), rxe as a continuation (MIDDLE-LAST). Both must
// work.
func oddPartialRead(o *oddRig, begin bth.Opcode) {
	const total = 4 * oddMTU
	p, data := o.gpsn, pattern(9, total)
	o.post(0, roce.OpRead, 0, total)
	q := o.want(bth.RCReadRequest, p)
	if q.n != total {
		o.t.Fatalf("the READ asks for %d bytes, want %d", q.n, total)
	}
	o.send(bth.RCReadResponseFirst, p, false, aeth(bth.ACKNoLimit, 1), data[:oddMTU])
	o.send(bth.RCReadResponseMiddle, p.Add(1), false, nil, data[oddMTU:2*oddMTU])
	rest := o.want(bth.RCReadRequest, p.Add(2))
	if rest.va != q.va+2*oddMTU || rest.n != 2*oddMTU {
		o.t.Errorf("the retry asks for %d bytes at +%d, want %d at +%d", rest.n, rest.va-q.va,
			2*oddMTU, 2*oddMTU)
	}
	var ext []byte
	if begin == bth.RCReadResponseFirst {
		ext = aeth(bth.ACKNoLimit, 1)
	}
	o.send(begin, p.Add(2), false, ext, data[2*oddMTU:3*oddMTU])
	o.notDone()
	o.send(bth.RCReadResponseLast, p.Add(3), false, aeth(bth.ACKNoLimit, 1), data[3*oddMTU:])
	o.done(0)
	check(o.t, peer.Check(o.mr.Bytes()[:total], 9))
}

// oddReadTwice: a second copy of a response with different bytes is ignored.
func oddReadTwice(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpRead, 0, 2*oddMTU)
	o.want(bth.RCReadRequest, p)
	data, wrong := pattern(3, 2*oddMTU), pattern(4, 2*oddMTU)
	o.send(bth.RCReadResponseFirst, p, false, aeth(bth.ACKNoLimit, 1), data[:oddMTU])
	o.send(bth.RCReadResponseFirst, p, false, aeth(bth.ACKNoLimit, 1), wrong[:oddMTU])
	o.send(bth.RCReadResponseLast, p.Add(1), false, aeth(bth.ACKNoLimit, 1), data[oddMTU:])
	o.done(0)
	o.send(bth.RCReadResponseFirst, p, false, aeth(bth.ACKNoLimit, 1), wrong[:oddMTU])
	o.send(bth.RCReadResponseLast, p.Add(1), false, aeth(bth.ACKNoLimit, 1), wrong[oddMTU:])
	o.post(1, roce.OpWrite, 0, 8)
	o.want(bth.RCWriteOnly, p.Add(2))
	o.ack(p.Add(2))
	o.done(1)
	check(o.t, peer.Check(o.mr.Bytes()[:2*oddMTU], 3))
}

func oddAtomicTwice(o *oddRig) {
	p := o.gpsn
	for i := range 2 {
		o.post(uint64(i), roce.OpFetchAdd, 8*i, 8)
	}
	o.want(bth.RCFetchAdd, p.Add(1))
	o.send(bth.RCAtomicAck, p, false, atomicAck(1, 40), nil)
	o.send(bth.RCAtomicAck, p, false, atomicAck(1, 99), nil)
	o.done(0)
	o.notDone()
	o.send(bth.RCAtomicAck, p.Add(1), false, atomicAck(2, 41), nil)
	o.done(1)
	if a, b := o.mr.Load64(0), o.mr.Load64(8); a != 40 || b != 41 {
		o.t.Errorf("the atomics brought %d and %d, want 40 and 41", a, b)
	}
}

// oddNAKDuringRetry: all answers are late. While gorxe retransmits, a NAK for the first
// retransmitted packet arrives, twice. From then on the peer behaves like a correct responder that
// has seen nothing yet.
func oddNAKDuringRetry(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpWrite, 0, 4*oddMTU)
	o.want(bth.RCWriteLast, p.Add(3))
	o.want(bth.RCWriteFirst, p) // retransmitted by a probe or the timeout of 67 ms
	o.nak(p, bth.NAKPSNSequence)
	o.nak(p, bth.NAKPSNSequence)
	o.notDone()
	o.respond(p, p.Add(4))
	o.done(0)
}

// respond answers requests like a correct responder, from the PSN that it expects until end.
func (o *oddRig) respond(expected, end bth.PSN) {
	o.t.Helper()
	refused := false
	for expected != end {
		g := o.next(5 * time.Second)
		switch {
		case g == nil:
			o.t.Fatalf("gorxe has stopped; packet %#x is still missing", uint32(expected))
		case g.psn == expected:
			expected, refused = expected.Next(), false
			if g.ackReq {
				o.ack(g.psn)
			}
		case g.psn.Before(expected):
			o.ack(expected.Prev())
		case !refused:
			refused = true
			o.nak(expected, bth.NAKPSNSequence)
		}
	}
	o.ack(end.Prev())
}

// oddGhostRNR: a late RNR NAK must not stop what is in flight now for its whole delay (655 ms).
func oddGhostRNR(o *oddRig) {
	p := o.gpsn
	o.post(0, roce.OpSend, 0, 8)
	o.want(bth.RCSendOnly, p)
	o.ack(p)
	o.done(0)
	o.post(1, roce.OpSend, 0, 8)
	o.want(bth.RCSendOnly, p.Add(1))
	o.send(bth.RCAck, p, false, aeth(bth.RNRSyndrome(0), 0), nil)
	start := time.Now()
	o.post(2, roce.OpSend, 0, 8)
	o.respond(p.Add(1), p.Add(3))
	o.done(1)
	o.done(2)
	if d := time.Since(start); d > bth.RNRDelay(0) {
		o.t.Errorf("it took %v", d)
	}
}

// gorxe as responder.

// remote is an address in gorxe's region.
func (o *oddRig) remote(off int) uint64 { return o.mr.Addr() + uint64(off) }

// readData reads n bytes from gorxe and collects the responses, which must have consecutive PSNs.
func (o *oddRig) readData(psn bth.PSN, off, n int) []byte {
	o.t.Helper()
	o.send(bth.RCReadRequest, psn, true, reth(o.remote(off), o.mr.RKey(), n), nil)
	var data []byte
	for i := 0; len(data) < n; i++ {
		g := o.next(2 * time.Second)
		if g == nil {
			o.t.Fatalf("READ of %d bytes: %d came", n, len(data))
		}
		if g.psn != psn.Add(uint32(i)) {
			o.t.Fatalf("READ response %d has %v, want psn %#x", i, g, uint32(psn.Add(uint32(i))))
		}
		data = append(data, g.payload...)
	}
	return data
}

// oddDuplicateRead: a repeated READ is executed again (IBA 9.7.4.5).
func oddDuplicateRead(o *oddRig) {
	const n = 3*oddMTU + 7
	for i := range uint32(2) {
		copy(o.mr.Bytes(), pattern(20+i, n))
		if !bytes.Equal(o.readData(o.psn, 0, n), pattern(20+i, n)) {
			o.t.Errorf("READ %d brings wrong data", i)
		}
	}
	o.send(bth.RCWriteOnly, o.psn.Add(4), true, reth(o.remote(0), o.mr.RKey(), 8), make([]byte, 8))
	o.want(bth.RCAck, o.psn.Add(4))
}

// oddDuplicateReadPart: a retry asks for the rest of a READ only.
func oddDuplicateReadPart(o *oddRig) {
	const n = 4 * oddMTU
	copy(o.mr.Bytes(), pattern(30, n))
	whole := o.readData(o.psn, 0, n)
	part := o.readData(o.psn.Add(2), 2*oddMTU, 2*oddMTU)
	last := o.readData(o.psn.Add(3), 3*oddMTU, oddMTU)
	if !bytes.Equal(whole, pattern(30, n)) || !bytes.Equal(part, whole[2*oddMTU:]) ||
		!bytes.Equal(last, whole[3*oddMTU:]) {
		o.t.Error("the parts are not those of the whole")
	}
	o.send(bth.RCWriteOnly, o.psn.Add(4), true, reth(o.remote(0), o.mr.RKey(), 8), make([]byte, 8))
	o.want(bth.RCAck, o.psn.Add(4))
}

// oddDuplicateAtomic: a repeated atomic is not executed again but answered as the first time (IBA
// 9.4.5).
func oddDuplicateAtomic(o *oddRig) {
	o.mr.Store64(0, 100)
	for i := range uint32(3) {
		o.send(bth.RCFetchAdd, o.psn.Add(i), true, fetchAdd(o.remote(0), o.mr.RKey(), 10), nil)
		if g := o.want(bth.RCAtomicAck, o.psn.Add(i)); g.atomic != uint64(100+10*i) {
			o.t.Errorf("atomic %d found %d", i, g.atomic)
		}
	}
	for _, i := range []uint32{2, 0, 1, 0} {
		o.send(bth.RCFetchAdd, o.psn.Add(i), true, fetchAdd(o.remote(0), o.mr.RKey(), 10), nil)
		if g := o.want(bth.RCAtomicAck, o.psn.Add(i)); g.atomic != uint64(100+10*i) {
			o.t.Errorf("duplicate of atomic %d is answered %d, want %d", i, g.atomic, 100+10*i)
		}
	}
	if v := o.mr.Load64(0); v != 130 {
		o.t.Errorf("the sum is %d, want 130: an atomic was executed twice", v)
	}
}

// oddDuplicateSend: a repeated SEND takes no second receive, a repeated WRITE does not write. Both
// are acknowledged again.
func oddDuplicateSend(o *oddRig) {
	for i := range uint64(2) {
		check(o.t, o.qp.PostRecv(roce.RecvWR{ID: 50 + i, SGEs: []roce.SGE{o.mr.SGE(4096, 100)}}))
	}
	o.send(bth.RCSendOnly, o.psn, true, nil, pattern(1, 60))
	o.want(bth.RCAck, o.psn)
	o.done(50)
	o.send(bth.RCWriteOnly, o.psn.Add(1), true, reth(o.remote(0), o.mr.RKey(), 16), pattern(2, 16))
	o.want(bth.RCAck, o.psn.Add(1))
	for range 2 {
		o.send(bth.RCSendOnly, o.psn, true, nil, pattern(7, 60))
		o.want(bth.RCAck, o.psn.Add(1))
		o.send(bth.RCWriteOnly, o.psn.Add(1), true, reth(o.remote(0), o.mr.RKey(), 16),
			pattern(8, 16))
		o.want(bth.RCAck, o.psn.Add(1))
	}
	o.notDone()
	check(o.t, peer.Check(o.mr.Bytes()[:16], 2))
	check(o.t, peer.Check(o.mr.Bytes()[4096:4096+60], 1))
	o.send(bth.RCSendOnly, o.psn.Add(2), true, nil, pattern(3, 60))
	o.want(bth.RCAck, o.psn.Add(2))
	o.done(51)
}

// oddGap: one NAK per gap, however many packets follow it, then continue where it began.
func oddGap(o *oddRig) {
	write := func(i uint32) {
		o.send(bth.RCWriteOnly, o.psn.Add(i), true, reth(o.remote(int(i)*16), o.mr.RKey(), 16),
			pattern(i, 16))
	}
	write(0)
	o.want(bth.RCAck, o.psn)
	write(2)
	if g := o.want(bth.RCAck, o.psn.Add(1)); g.synd.Kind() != bth.SyndromeNAK ||
		g.synd.NAKCode() != bth.NAKPSNSequence {
		o.t.Errorf("the gap is answered with %v", g.synd)
	}
	write(3)
	write(4)
	if n := o.quiet(20 * time.Millisecond); n > 0 {
		o.t.Errorf("%d more answers to the same gap", n)
	}
	for i := uint32(1); i < 5; i++ {
		write(i)
	}
	o.want(bth.RCAck, o.psn.Add(4))
	for i := range uint32(5) {
		check(o.t, peer.Check(o.mr.Bytes()[i*16:i*16+16], i))
	}
}

// oddFarPSN: PSNs from the other half of the space are old, those ahead are a gap. Neither does
// harm.
func oddFarPSN(o *oddRig) {
	for _, d := range []uint32{1 << 22, 1<<23 - 1, 1 << 23, 1<<23 + 1, 1<<24 - 1} {
		o.send(bth.RCWriteOnly, o.psn.Add(d), true, reth(o.remote(0), o.mr.RKey(), 16),
			pattern(99, 16))
	}
	o.quiet(20 * time.Millisecond)
	if !bytes.Equal(o.mr.Bytes()[:16], make([]byte, 16)) {
		o.t.Error("a WRITE with a PSN from far away was executed")
	}
	o.send(bth.RCWriteOnly, o.psn, true, reth(o.remote(0), o.mr.RKey(), 16), pattern(1, 16))
	o.want(bth.RCAck, o.psn)
	check(o.t, peer.Check(o.mr.Bytes()[:16], 1))
}

// oddMisaligned: an atomic at an address that is not a multiple of 8 is an invalid request (IBA
// 9.4.5).
func oddMisaligned(o *oddRig) {
	o.send(bth.RCFetchAdd, o.psn, true, fetchAdd(o.remote(4), o.mr.RKey(), 10), nil)
	if g := o.want(bth.RCAck, o.psn); g.synd.Kind() != bth.SyndromeNAK ||
		g.synd.NAKCode() != bth.NAKInvalidRequest {
		o.t.Errorf("it is answered with %v", g.synd)
	}
	if o.qp.State() != roce.StateErr {
		o.t.Errorf("the QP is in %v, want ERR", o.qp.State())
	}
}
