package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// srqTalk is a talk with a QP that uses an SRQ of depth 8.
func srqTalk(t *testing.T, typ Type) (*talk, *SRQ) {
	t.Helper()
	k := newTalk(t, typ)
	srq, err := k.NewSRQ(k.pd, SRQConfig{Depth: 8, MaxSGE: 2})
	must(t, err)
	k.renew(typ, func(a *InitAttr, _ *Attr) { a.SRQ = srq })
	return k, srq
}

func (k *talk) stock(srq *SRQ, ids ...uint64) {
	k.t.Helper()
	for _, id := range ids {
		if n, err := srq.PostRecv([]RecvWR{{ID: id, SGEs: []SGE{k.sge(int(id)*64, 64)}}}); n != 1 {
			k.t.Fatal(err)
		}
	}
}

// IBA 10.2.9: QPs that share an SRQ take its receives in the order in which their messages start,
// and each completes in its QP's CQ. A partly received message keeps its receive.
func TestSRQSharedByTwoQPs(t *testing.T) {
	k, srq := srqTalk(t, RC)
	cq2, err := NewCQ(16)
	must(t, err)
	q2, err := k.CreateQP(InitAttr{Type: RC, PD: k.pd, SendCQ: cq2, RecvCQ: cq2, SRQ: srq,
		SQDepth: 4})
	must(t, err)
	at := connectAttr()
	at.PathMTU, at.RQPSN = talkMTU, k.base
	k.connect(q2, at, 1, peerQPN)
	k.listen()
	k.stock(srq, 1, 2, 3)
	if n, err := srq.PostRecv([]RecvWR{{ID: 4, SGEs: []SGE{k.sge(1024, 300)}}}); n != 1 {
		t.Fatal(err)
	}
	to2 := func(p pkt) pkt { p.dest = q2.qpn; return p }
	k.say(send(0, seq(10)), to2(send(0, seq(20))), send(1, seq(30)))
	k.completes("1 success RECV 10B", "3 success RECV 30B")
	var wcs [4]WC
	k.equal("completions at the second CQ", cq2.Poll(wcs[:]), 1)
	k.equal("the second QP's", wcText(wcs[0]), "2 success RECV 20B")
	k.equal("its QPN", wcs[0].QPN, q2.qpn)
	k.listen()
	k.say(to2(pkt{op: bth.RCSendFirst, psn: 1, data: seq(256)}))
	k.equal("left", srq.Len(), 0)
	k.listen()
	k.say(send(2, seq(1)))
	k.hears("RNR NAK timer 12 +2 msn=2")
	k.say(to2(pkt{op: bth.RCSendLast, psn: 2, data: seq(1)}))
	k.equal("completions at the second CQ", cq2.Poll(wcs[:]), 1)
	k.equal("the second QP's", wcText(wcs[0]), "4 success RECV 257B")
}

// IBA 10.2.9.1: the limit event is raised once, when fewer receives than the limit are left. It
// must be armed again.
func TestSRQLimit(t *testing.T) {
	k, srq := srqTalk(t, RC)
	k.stock(srq, 1, 2, 3, 4, 5, 6)
	must(t, srq.SetLimit(5))
	psn := 0
	take := func(events ...string) {
		t.Helper()
		k.say(send(psn, nil))
		psn++
		k.listen()
		k.raises(events...)
	}
	take()                    // 5 left, not fewer than 5
	take("SRQ_LIMIT_REACHED") // 4
	take()
	must(t, srq.SetLimit(3))
	take("SRQ_LIMIT_REACHED") // 2
	must(t, srq.SetLimit(0))
	take()
	take()
	for _, n := range []int{-1, 9} {
		if err := srq.SetLimit(n); !errors.Is(err, ErrInvalidAttr) {
			t.Errorf("SetLimit(%d): %v", n, err)
		}
	}
}

// IBA 11.6.3.1: a QP with an SRQ that goes to ERR raises LAST_WQE_REACHED when it takes no more
// receives. The receives in the SRQ belong to the other QPs: only that of a partly received message
// is flushed.
func TestLastWQEReached(t *testing.T) {
	k, srq := srqTalk(t, RC)
	k.stock(srq, 1, 2)
	must(t, k.modify(Err))
	k.raises("QP_LAST_WQE_REACHED")
	k.completes()
	k.equal("left", srq.Len(), 2)

	k, srq = srqTalk(t, RC)
	k.stock(srq, 1, 2)
	if n, err := srq.PostRecv([]RecvWR{{ID: 3, SGEs: []SGE{k.sge(0, 600)}}}); n != 1 {
		t.Fatal(err)
	}
	// no LAST: refused
	k.say(send(0, nil), send(1, nil), pkt{op: bth.RCSendFirst, psn: 2, data: seq(256)},
		k.write(3, nil))
	k.raises("QP_REQ_ERR", "QP_LAST_WQE_REACHED")
	k.completes("1 success RECV 0B", "2 success RECV 0B", "3 Work Request Flushed Error")
}

// Receives cannot be posted to the QP itself. The SRQ has its own limits.
func TestSRQPosting(t *testing.T) {
	k, srq := srqTalk(t, RC)
	if _, err := k.q.PostRecv([]RecvWR{{}}); !errors.Is(err, ErrHasSRQ) {
		t.Errorf("PostRecv on the QP: %v", err)
	}
	n, err := srq.PostRecv(make([]RecvWR, 9))
	if n != 8 || !errors.Is(err, ErrRQFull) {
		t.Errorf("accepted %d: %v", n, err)
	}
	_, err = srq.PostRecv([]RecvWR{{SGEs: make([]SGE, 3)}})
	if !errors.Is(err, ErrRQFull) && !errors.Is(err, ErrInvalidWR) {
		t.Errorf("too many SGEs: %v", err)
	}
	for _, c := range []SRQConfig{{Depth: 0}, {Depth: MaxQueueDepth + 1},
		{Depth: 1, MaxSGE: MaxSGE + 1}} {
		if _, err := k.NewSRQ(k.pd, c); !errors.Is(err, ErrInvalidDepth) {
			t.Errorf("NewSRQ(%+v): %v", c, err)
		}
	}
}

// IBA 10.2.9: an SRQ belongs to a PD, against which its receives are checked, even if the QP
// belongs to another.
func TestSRQOfAnotherPD(t *testing.T) {
	k := newTalk(t, RC)
	pd2, err := k.mrs.AllocPD()
	must(t, err)
	m, mem := k.region(pd2, 64, mr.LocalWrite)
	srq, err := k.NewSRQ(pd2, SRQConfig{Depth: 4})
	must(t, err)
	q, err := k.CreateQP(InitAttr{Type: RC, PD: k.pd, SendCQ: k.cq, RecvCQ: k.cq, SRQ: srq,
		SQDepth: 4})
	must(t, err)
	at := connectAttr()
	at.RQPSN = k.base
	k.connect(q, at, 1, peerQPN)
	k.listen()
	if n, err := srq.PostRecv([]RecvWR{{ID: 1,
		SGEs: []SGE{{Addr: m.Addr(), Length: 64, LKey: bth.LKey(m.LKey())}}}}); n != 1 {
		t.Fatal(err)
	}
	p := send(0, seq(64))
	p.dest = q.qpn
	k.say(p)
	k.completes("1 success RECV 64B")
	k.equal("received", string(mem), string(seq(64)))
	if n, err := srq.PostRecv([]RecvWR{{SGEs: []SGE{k.sge(0, 8)}}}); n != 0 ||
		!errors.Is(err, ErrInvalidKey) {
		t.Errorf("a receive in the QP's PD: accepted %d, %v", n, err)
	}
}

// Two QPs empty an SRQ at the same time, which is a known bug in other stacks. The last one is
// refused, and no receive is used twice.
func TestSRQDrainedBetweenQPs(t *testing.T) {
	k, srq := srqTalk(t, UC)
	k.stock(srq, 1)
	k.say(pkt{op: bth.UCSendOnly, psn: 0}, pkt{op: bth.UCSendOnly, psn: 1})
	k.completes("1 success RECV 0B")
	k.equal("drops", k.Counters().DropNoRecv, uint64(1))
}
