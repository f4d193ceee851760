package qp

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// defersPayloads reports whether payloads are deferred at all: with the race detector packets are
// complete.
func defersPayloads() bool { return mr.CopyOutLast(make([]byte, 16), make([]byte, 16)) > 0 }

// isDeferredLen reports whether deferred is a valid number of deferred bytes of a piece of n bytes:
// all except its last word.
func isDeferredLen(n, deferred int) bool {
	if !defersPayloads() {
		return deferred == 0
	}
	return deferred <= n && deferred >= n-8
}

// twins are two engines that differ only in that one defers payloads.
type twins struct {
	t        *testing.T
	complete *world
	deferred *world
}

func newTwins(t *testing.T, typ Type) *twins {
	w := &twins{t: t, complete: newWorld(t, 7), deferred: newWorld(t, 7)}
	for _, o := range []*world{w.complete, w.deferred} {
		o.ends[0].deferring = o == w.deferred
		o.pair(typ, func(_ *InitAttr, a *Attr) { a.PathMTU = 4096 })
		r := rand.NewChaCha8([32]byte{1})
		_, _ = r.Read(o.ends[0].mem)
	}
	return w
}

// next builds the next packet of end 0 with both engines, completes the deferred payload and
// compares the packets. It returns the number of deferred bytes.
func (w *twins) next() (deferred int) {
	w.t.Helper()
	want, got := bytes.Repeat([]byte{0x55}, 8192), bytes.Repeat([]byte{0xaa}, 8192)
	complete := w.complete.ends[0].PollTransmit(0, want)
	tx := w.deferred.ends[0].PollTransmit(0, got)
	if complete.Payload != nil {
		w.t.Error("a packet that should be complete has a deferred payload")
	}
	n, at, payload := tx.Len, tx.PayloadAt, tx.Payload
	if n == 0 || n != complete.Len || tx.NetLen != complete.NetLen || at+len(payload) > n {
		w.t.Fatalf("complete: %d bytes (%d); deferring: %d bytes (%d), payload of %d at %d",
			complete.Len, complete.NetLen, n, tx.NetLen, len(payload), at)
	}
	// the path's headers are written in one piece of that size
	for i := max(at, bth.MaxNetHeader); i < at+len(payload) && payload != nil; i++ {
		if got[i] != 0xaa {
			w.t.Fatalf("byte %d of %d was written although it was deferred: %x; payload of %d at %d", i, n, got[i], len(payload), at)
		}
	}
	copy(got[at:], payload)
	payloadOf := func(b []byte) []byte { // addresses, keys and QPNs differ between the engines
		p := &bth.Packet{}
		must(w.t, p.Parse(b[tx.NetLen:n]))
		return p.Payload
	}
	if !bytes.Equal(payloadOf(got), payloadOf(want)) {
		w.t.Error("the payloads differ")
	}
	return len(payload)
}

func (w *twins) post(wr func(o *world) SendWR) {
	w.t.Helper()
	for _, o := range []*world{w.complete, w.deferred} {
		o.post(o.ends[0].qp, wr(o))
		o.ends[0].HandleDoorbells(0)
	}
}

// A packet with its deferred payload equals the complete packet, for any address and length.
func TestDeferredPayload(t *testing.T) {
	for _, n := range []int{1, minDeferred - 1, minDeferred, minDeferred + 1, 2000, 4093, 4095,
		4096} {
		for off := range 9 {
			w := newTwins(t, RC)
			for _, op := range []Op{OpWrite, OpSend} {
				w.post(func(o *world) SendWR {
					raddr, rkey := o.ends[1].remote(0)
					return SendWR{Op: op, SGEs: []SGE{o.ends[0].sge(off, n)}, RemoteAddr: raddr,
						RKey: rkey}
				})
				deferred := w.next()
				if n >= minDeferred && !isDeferredLen(n, deferred) || n < minDeferred &&
					deferred != 0 {
					t.Errorf("%s of %d bytes at %d: %d deferred", op, n, off, deferred)
				}
			}
		}
	}
}

// Each packet of a long message has its own deferred payload. If a packet has several pieces, the
// first long one is deferred.
func TestDeferredPayloadOfSGEs(t *testing.T) {
	w := newTwins(t, RC)
	w.post(func(o *world) SendWR {
		raddr, rkey := o.ends[1].remote(0)
		return SendWR{Op: OpWrite, RemoteAddr: raddr, RKey: rkey,
			SGEs: []SGE{o.ends[0].sge(64, 100), o.ends[0].sge(5000, 1501),
				o.ends[0].sge(20001, 6000), o.ends[0].sge(3, 5000)}}
	})
	// 4096 bytes are 100 + 1501 + 2495, then 3505 + 591, then 4096, then 313.
	for i, want := range []int{1501, 3505, 4096, 0} {
		if deferred := w.next(); !isDeferredLen(want, deferred) {
			t.Errorf("packet %d: %d bytes deferred, want up to %d", i, deferred, want)
		}
	}
}

// If the second key of a work request is invalid, its packet is not sent, and its deferred payload
// does not appear in the next one.
func TestDeferredPayloadWithInvalidKey(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 4096 })
	k.DeferPayloads()
	dies, _ := k.region(k.pd, 64, 0)
	wr := k.wr(1, OpWrite, 2000)
	wr.SGEs = append(wr.SGEs, SGE{Addr: dies.Addr(), Length: 64, LKey: bth.LKey(dies.LKey())})
	k.post(wr)
	must(t, k.mrs.Deregister(dies))
	k.HandleDoorbells(k.now)
	var buf [8192]byte
	if tx := k.PollTransmit(k.now, buf[:]); tx != nil {
		t.Errorf("PollTransmit() = %+v, want nil", *tx)
	}
}

// A UC message completes when its last payload was copied, not before: after the completion the
// program may change the memory.
func TestDeferredPayloadCompletesAfterCopy(t *testing.T) {
	if !defersPayloads() {
		t.Skip("payloads are not deferred with the race detector")
	}
	w := newWorld(t, 7)
	e := w.ends[0] // defers payloads
	w.pair(UC, func(_ *InitAttr, a *Attr) { a.PathMTU = 4096 })
	for _, n := range []int{minDeferred, 4096, 4096 + minDeferred} {
		w.post(e.qp, SendWR{ID: 5, Op: OpSend, Flags: Signaled, SGEs: []SGE{e.sge(0, n)}})
		e.HandleDoorbells(0)
		var buf [8192]byte
		for left := n; left > 0; left -= 4096 {
			tx := e.PollTransmit(0, buf[:])
			if tx == nil || tx.Payload == nil || e.cq.Len() != 0 {
				t.Fatalf("message of %d bytes: %+v with %d completions, want a deferred payload and none",
					n, tx, e.cq.Len())
			}
			e.Copied()
		}
		var wc [2]WC
		if got := e.cq.Poll(wc[:]); got != 1 || wc[0].ID != 5 || wc[0].Status != Success {
			t.Errorf("message of %d bytes: %d completions, %+v; want 1", n, got, wc[0])
		}
	}
}

// READ responses have deferred payloads, and the ACK after them has none.
func TestDeferredPayloadOfRead(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.PathMTU = 4096 })
	k.DeferPayloads()
	r := rand.NewChaCha8([32]byte{2})
	_, _ = r.Read(k.mem)
	k.say(k.read(0, 40, 6000), k.write(2, []byte{1, 2, 3}))
	k.now += ackLate
	var got []byte
	for _, want := range []int{4096, 1904, 0} {
		var buf [8192]byte
		tx := k.PollTransmit(k.now, buf[:])
		if !isDeferredLen(want, len(tx.Payload)) {
			t.Errorf("%d bytes deferred of a response of %d", len(tx.Payload), want)
		}
		copy(buf[tx.PayloadAt:], tx.Payload)
		p := &bth.Packet{}
		must(t, p.Parse(buf[tx.NetLen:tx.Len]))
		got = append(got, p.Payload...)
	}
	if !bytes.Equal(got, k.mem[40:6040]) {
		t.Error("the READ returned wrong data")
	}
}

// A late reply that fails after a part of its payload was deferred leaves nothing to the ACK.
func TestACKAfterFailedReply(t *testing.T) {
	k := newTalk(t, RC, func(_ *InitAttr, at *Attr) { at.PathMTU = 4096 })
	k.DeferPayloads()
	m, mem := k.region(k.pd, 64, 0)
	k.say(k.write(0, seq(8)))
	k.now += 10 * ackSoon
	k.post(SendWR{ID: 1, Op: OpSend, SGEs: []SGE{k.sge(0, 2*minDeferred),
		{Addr: mr.AddrOf(mem), Length: 64, LKey: bth.LKey(m.LKey())}}})
	must(t, k.mrs.Deregister(m))
	k.HandleDoorbells(k.now)
	var buf [8192]byte
	tx := k.PollTransmit(k.now, buf[:])
	if tx == nil || bth.BTH(buf[tx.NetLen:tx.Len]).Opcode() != bth.RCAck {
		t.Fatalf("PollTransmit() = %+v, want an ACK", tx)
	}
	if tx.Payload != nil {
		t.Errorf("the ACK has %d deferred bytes", len(tx.Payload))
	}
}
