package roce

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
)

// sizes are message lengths: none, around the limits of a packet, and many packets.
var sizes = []int{0, 1, 7, 64, 1023, 1024, 1025, 4096, 40000}

func TestWrite(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for _, typ := range []QPType{RC, UC} {
			a, b := newRig(t, rigConfig{typ: typ, opts: []Option{WithProgress(p)}})
			for i, n := range sizes {
				want := fill(a.mr.Bytes()[:n], uint64(i))
				fill(b.mr.Bytes(), 99)
				after := bytes.Clone(b.mr.Bytes()[100+n:])
				wr := SendWR{ID: uint64(i), Op: OpWrite, Flags: Signaled,
					SGEs: []SGE{a.mr.SGE(0, n)}, RemoteAddr: b.mr.Addr() + 100, RKey: b.mr.RKey()}
				if err := a.qp.PostSend(wr); err != nil {
					t.Fatal(err)
				}
				pollOK(t, uint64(i), WCWrite, a.cq, b.cq)
				// A UC WRITE completes when it is sent. A WRITE with immediate after it shows that
				// it has arrived.
				flushUC(t, a, b)
				if !bytes.Equal(b.mr.Bytes()[100:100+n], want) ||
					!bytes.Equal(b.mr.Bytes()[100+n:], after) {
					t.Fatalf("%v WRITE of %d bytes: memory differs", typ, n)
				}
			}
		}
	})
}

// flushUC waits until everything that a has sent before has arrived at b.
func flushUC(t *testing.T, a, b *end) {
	t.Helper()
	must(t, b.qp.PostRecv(RecvWR{ID: 77}))
	must(t, a.qp.PostSend(SendWR{ID: 78, Op: OpSendImm, Flags: Signaled, Imm: 5}))
	pollOK(t, 78, WCSend, a.cq, b.cq)
	if wc := pollOK(t, 77, WCRecv, b.cq, a.cq); wc.Imm != 5 || wc.Flags&WCWithImm == 0 {
		t.Fatalf("completion %+v, want the immediate of flushUC", wc)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestSendRecv(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for _, typ := range []QPType{RC, UC} {
			a, b := newRig(t, rigConfig{typ: typ, opts: []Option{WithProgress(p)}})
			for i, n := range sizes {
				want := fill(a.mr.Bytes()[:n], uint64(i))
				// The receive has two SGEs.
				must(t, b.qp.PostRecv(RecvWR{ID: 1,
					SGEs: []SGE{b.mr.SGE(0, n/3), b.mr.SGE(n/3, 50000-n/3)}}))
				must(t, a.qp.PostSend(SendWR{ID: 2, Op: OpSend, Flags: Signaled,
					SGEs: []SGE{a.mr.SGE(0, n/2), a.mr.SGE(n/2, n-n/2)}}))
				pollOK(t, 2, WCSend, a.cq, b.cq)
				wc := pollOK(t, 1, WCRecv, b.cq, a.cq)
				if int(wc.ByteLen) != n || !bytes.Equal(b.mr.Bytes()[:n], want) {
					t.Fatalf("%v SEND of %d bytes: received %d bytes, or the data differs", typ, n,
						wc.ByteLen)
				}
			}
			// Inline data needs no memory region, and its buffer may be reused at once.
			inline := []byte("inline payload")
			must(t, b.qp.PostRecv(RecvWR{ID: 3, SGEs: []SGE{b.mr.SGE(0, 64)}}))
			must(t, a.qp.PostSend(SendWR{ID: 4, Op: OpSend, Flags: Signaled, Inline: inline}))
			inline[0] = 'W'
			pollOK(t, 4, WCSend, a.cq, b.cq)
			if wc := pollOK(t, 3, WCRecv, b.cq,
				a.cq); string(b.mr.Bytes()[:wc.ByteLen]) != "inline payload" {
				t.Fatalf("inline SEND: received %q", b.mr.Bytes()[:wc.ByteLen])
			}
		}
	})
}

func TestWriteImm(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		for _, typ := range []QPType{RC, UC} {
			a, b := newRig(t, rigConfig{typ: typ, opts: []Option{WithProgress(p)}})
			want := fill(a.mr.Bytes()[:3000], 7)
			must(t, b.qp.PostRecv(RecvWR{ID: 1}))
			must(t, a.qp.PostSend(SendWR{ID: 2, Op: OpWriteImm, Flags: Signaled, Imm: 0xdeadbeef,
				SGEs: []SGE{a.mr.SGE(0, 3000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			pollOK(t, 2, WCWrite, a.cq, b.cq)
			wc := pollOK(t, 1, WCRecvWriteImm, b.cq, a.cq)
			if wc.Imm != 0xdeadbeef || wc.ByteLen != 3000 ||
				!bytes.Equal(b.mr.Bytes()[:3000], want) {
				t.Fatalf("%v: %+v, or the data differs", typ, wc)
			}
		}
	})
}

func TestReadAndAtomics(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{opts: []Option{WithProgress(p)}})
		for i, n := range sizes {
			want := fill(b.mr.Bytes()[:n], uint64(i))
			must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpRead, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(8, n)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			pollOK(t, 1, WCRead, a.cq, b.cq)
			if !bytes.Equal(a.mr.Bytes()[8:8+n], want) {
				t.Fatalf("READ of %d bytes: data differs", n)
			}
		}
		b.mr.Store64(16, 40)
		at := SendWR{ID: 2, Op: OpFetchAdd, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 8)},
			RemoteAddr: b.mr.Addr() + 16, RKey: b.mr.RKey(), SwapAdd: 2}
		must(t, a.qp.PostSend(at))
		pollOK(t, 2, WCFetchAdd, a.cq, b.cq)
		if old, now := a.mr.Load64(0), b.mr.Load64(16); old != 40 || now != 42 {
			t.Fatalf("FETCH_ADD: old %d, new %d; want 40, 42", old, now)
		}
		for _, c := range []struct{ compare, swap, old, now uint64 }{{41, 1, 42, 42},
			{42, 7, 42, 7}} {
			at.ID, at.Op, at.Compare, at.SwapAdd = 3, OpCmpSwap, c.compare, c.swap
			must(t, a.qp.PostSend(at))
			pollOK(t, 3, WCCmpSwap, a.cq, b.cq)
			if old, now := a.mr.Load64(0), b.mr.Load64(16); old != c.old || now != c.now {
				t.Fatalf("CMP_SWAP %+v: old %d, new %d", c, old, now)
			}
		}
	})
}

// TestDatagram: a UD receive has the sender's network header in its first 40 bytes (IBA 11.4.1.2),
// and datagrams with a wrong Q_Key are dropped.
func TestDatagram(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{typ: UD, opts: []Option{WithProgress(p)}})
		for _, gid := range []string{"ipv4", "ipv6"} {
			ah, err := a.CreateAH(context.Background(),
				AHAttr{Remote: gidOf(t, b.Device, GIDKind(gid))})
			must(t, err)
			must(t, b.qp.PostRecv(RecvWR{ID: 1, SGEs: []SGE{b.mr.SGE(0, 2000)}}))
			wr := SendWR{ID: 2, Op: OpSendImm, Flags: Signaled, Imm: 9, Inline: []byte("datagram"),
				AH: ah, RemoteQPN: b.qp.QPN(), RemoteQKey: 0x4321}
			must(t, a.qp.PostSend(wr)) // wrong Q_Key: dropped
			wr.RemoteQKey = 0x1234
			must(t, a.qp.PostSend(wr))
			pollOK(t, 2, WCSend, a.cq, b.cq)
			pollOK(t, 2, WCSend, a.cq, b.cq)
			wc := pollOK(t, 1, WCRecv, b.cq, a.cq)
			if wc.SrcQP != a.qp.QPN() || wc.Flags&WCGRH == 0 || wc.Imm != 9 ||
				string(b.mr.Bytes()[GRHLen:wc.ByteLen]) != "datagram" {
				t.Fatalf("%s: %+v %q", gid, wc, b.mr.Bytes()[GRHLen:wc.ByteLen])
			}
			must(t, ah.Close())
			must(t, ah.Close())
		}
		if c := b.Counters(); c.DropQKey != 2 {
			t.Errorf("drop_qkey = %d, want 2", c.DropQKey)
		}
	})
}

func gidOf(t testing.TB, d *Device, kind GIDKind) GID {
	t.Helper()
	for _, e := range d.GIDs() {
		if e.Kind == kind {
			return e.GID
		}
	}
	t.Fatalf("no %s GID in %v", kind, d.GIDs())
	return GID{}
}

// TestErrors: a remote error is the status of the completion, and the rest is flushed.
func TestErrors(t *testing.T) {
	cases := []struct {
		name string
		wr   func(a, b *end) SendWR
		want Status
	}{
		{"wrong rkey", func(a, b *end) SendWR {
			return SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(),
				RKey: b.mr.RKey() ^ 1}
		}, RemAccessErr},
		{"beyond the region", func(a, b *end) SendWR {
			return SendWR{Op: OpRead, SGEs: []SGE{a.mr.SGE(0, 8)},
				RemoteAddr: b.mr.Addr() + uint64(b.mr.Len()) - 7, RKey: b.mr.RKey()}
		}, RemAccessErr},
		{"misaligned atomic", func(a, b *end) SendWR {
			return SendWR{Op: OpFetchAdd, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr() + 4,
				RKey: b.mr.RKey()}
		}, RemInvReqErr},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
			wr := c.wr(a, b)
			wr.ID = 1
			must(t, a.qp.PostSend(wr, SendWR{ID: 2, Op: OpSend}))
			wcs := poll(t, 2, a.cq, b.cq)
			if wcs[0].ID != 1 || wcs[0].Status != c.want || wcs[1].ID != 2 ||
				wcs[1].Status != WRFlushErr {
				t.Fatalf("statuses %v, %v; want %v, %v", wcs[0].Status, wcs[1].Status, c.want,
					WRFlushErr)
			}
			if s := a.qp.State(); s != StateErr {
				t.Errorf("state %v, want ERR", s)
			}
		})
	}
}

// TestLossyLink transfers data over a link that drops, duplicates, reorders and corrupts frames.
func TestLossyLink(t *testing.T) {
	plan := loopback.Plan{Loss: 0.03, Duplicate: 0.03, Reorder: 0.03, Corrupt: 0.03}
	bothModes(t, func(t *testing.T, p Progress) {
		a, b := newRig(t, rigConfig{mem: 1 << 20, opts: []Option{WithProgress(p)},
			link: loopback.Config{Seed: 3, Plan: plan}})
		for i := range 20 {
			want := fill(a.mr.Bytes()[:100_000], uint64(i))
			must(t, a.qp.PostSend(SendWR{ID: 1, Op: OpWrite, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(0, 100_000)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			pollOK(t, 1, WCWrite, a.cq, b.cq)
			if !bytes.Equal(b.mr.Bytes()[:100_000], want) {
				t.Fatal("data differs")
			}
		}
		if c := a.Counters(); c.Retransmits == 0 {
			t.Error("Retransmits = 0, want more")
		}
		if c := b.Counters(); c.Drops[frame.ReasonICRC] == 0 {
			t.Error("no frame with a bad ICRC is counted")
		}
	})
}

// TestSRQ: two QPs use one SRQ; the limit event occurs once (IBA 10.2.9.1).
func TestSRQ(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{})
	bd := newDevice(t, link, 1, WithProgress(Manual))
	pd, err := bd.AllocPD()
	must(t, err)
	srq, err := bd.CreateSRQ(pd, SRQConfig{Depth: 16})
	must(t, err)
	b := newEnd(t, bd, rigConfig{qp: QPConfig{SRQ: srq}})
	connect(t, a.qp, b.qp)
	other, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
	must(t, err)
	b2, err := bd.CreateQP(b.pd, QPConfig{SendCQ: b.cq, SRQ: srq})
	must(t, err)
	connect(t, other, b2)

	for i := range 4 {
		must(t, srq.PostRecv(RecvWR{ID: uint64(10 + i)}))
	}
	must(t, srq.SetLimit(3))
	if err := b.qp.PostRecv(RecvWR{}); err == nil {
		t.Error("PostRecv succeeds on a QP with an SRQ")
	}
	for i, q := range []*QP{a.qp, other} {
		must(t, q.PostSend(SendWR{ID: 1, Op: OpSend, Flags: Signaled}))
		pollOK(t, 1, WCSend, a.cq, b.cq)
		wc := pollOK(t, uint64(10+i), WCRecv, b.cq, a.cq)
		if want := []QPN{b.qp.QPN(), b2.QPN()}[i]; wc.QPN != want {
			t.Errorf("completion of QP %v, want %v", wc.QPN, want)
		}
	}
	bd.Progress()
	if e := nextEvent(t, bd, EventSRQLimit); e.SRQ != srq {
		t.Errorf("event names %p, want %p", e.SRQ, srq)
	}
	if err := srq.Close(); err == nil {
		t.Error("Close succeeds on an SRQ in use")
	}
}

// nextEvent returns the next event of a kind and skips others.
func nextEvent(t *testing.T, d *Device, kind EventKind) Event {
	t.Helper()
	for {
		select {
		case e, ok := <-d.Events():
			if !ok {
				t.Fatalf("the channel was closed without an event %s", kind)
			}
			if e.Kind == kind {
				return e
			}
		case <-time.After(deadline):
			t.Fatalf("no event %s", kind)
		}
	}
}

// TestConnectRefuses: Connect returns an error for an Endpoint that cannot be right.
func TestConnectRefuses(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	good := b.qp.Local()
	for _, c := range []struct {
		name string
		set  func(*Endpoint)
		want error
	}{
		{"QPN 0", func(e *Endpoint) { e.QPN = 0 }, ErrInvalid},
		{"no GID", func(e *Endpoint) { e.GID = GID{} }, ErrInvalid},
		{"MTU 1000", func(e *Endpoint) { e.MTU = 1000 }, ErrInvalid},
		{"own address", func(e *Endpoint) { e.GID = a.qp.Local().GID }, ErrUnreachable},
		{"unused address", func(e *Endpoint) { e.GID[15] = 200 }, ErrUnreachable},
	} {
		q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
		must(t, err)
		e := good
		c.set(&e)
		if err := q.Connect(context.Background(), e, ConnectOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if s := q.State(); s != StateInit {
			t.Errorf("%s: state %v", c.name, s)
		}
	}
}
