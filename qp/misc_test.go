package qp

import (
	"errors"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// NewEngine rejects an invalid configuration.
func TestNewEngineRefuses(t *testing.T) {
	e := newWorld(t, 1).ends[0]
	rnd := func() uint64 { return 1 }
	for _, c := range []Config{
		{Rand: rnd},
		{MRs: e.mrs},
		{MRs: e.mrs, Rand: rnd, MaxQP: -1},
		{MRs: e.mrs, Rand: rnd, MaxQP: maxMaxQP + 1},
		{MRs: e.mrs, Rand: rnd, MaxWindow: 1},
		{MRs: e.mrs, Rand: rnd, MaxWindow: maxMaxWindow + 1},
	} {
		if _, err := NewEngine(c); err == nil || !strings.HasPrefix(err.Error(), "qp: ") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// SetPortMTU limits the datagrams of QPs created afterwards.
func TestPortMTUBoundsDatagrams(t *testing.T) {
	k := newTalk(t, UD)
	k.SetPortMTU(1024)
	k.renew(UD)
	k.SetPortMTU(4096)
	post := func(n int) error {
		p := k.path(1)
		_, err := k.q.PostSend([]SendWR{{Op: OpSend, AH: NewAH(&p, nil), SGEs: []SGE{k.sge(0, n)}}})
		return err
	}
	if err := post(1025); !errors.Is(err, ErrInvalidWR) {
		t.Errorf("an old QP: %v", err)
	}
	k.renew(UD)
	if err := post(4096); err != nil {
		t.Errorf("a new QP: %v", err)
	}
	if err := post(4097); !errors.Is(err, ErrInvalidWR) {
		t.Errorf("a new QP: %v", err)
	}
}

// IBA 9.7.7: a message has at most 2^31 bytes, whatever its SGEs are.
func TestMessagesOfMoreThan2GiB(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.MaxSendSGE, a.MaxRecvSGE = MaxSGE, MaxSGE })
	const piece = 1<<31/(MaxSGE-1) + 1 // never used, so it takes no memory
	m, _ := k.region(k.pd, piece, 1)
	sges := make([]SGE, MaxSGE-1)
	for i := range sges {
		sges[i] = SGE{Addr: m.Addr(), Length: piece, LKey: bth.LKey(m.LKey())}
	}
	if _, err := k.q.PostSend([]SendWR{{Op: OpSend, SGEs: sges}}); !errors.Is(err, ErrInvalidWR) {
		t.Errorf("PostSend: %v", err)
	}
	if _, err := k.q.PostRecv([]RecvWR{{SGEs: sges}}); !errors.Is(err, ErrInvalidWR) {
		t.Errorf("PostRecv: %v", err)
	}
	over := uint32(MaxSGE-1)*piece - 1<<31
	sges[0].Length -= over
	if _, err := k.q.PostSend([]SendWR{{Op: OpWrite, SGEs: sges, RemoteAddr: 1,
		RKey: 1}}); err != nil {
		t.Errorf("exactly 2^31 bytes: %v", err)
	}
	k.equal("length", k.listen()[0].RETH().DMALen(), uint32(1<<31))
}

// RQLen includes the receive of a message in progress.
func TestRQLenCountsHeldReceive(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(600, 600)
	k.say(pkt{op: bth.RCSendFirst, data: seq(256)})
	k.equal("RQLen", k.q.RQLen(), 2)
	k.say(pkt{op: bth.RCSendLast, psn: 1, data: seq(1)})
	k.equal("RQLen", k.q.RQLen(), 1)
	k.equal("type", k.q.Type(), RC)
}

// UC: nothing new starts in SQD, and nothing is received before RTR or in ERR.
func TestUCStates(t *testing.T) {
	k := newTalk(t, UC)
	must(t, k.modify(SQD))
	k.post(k.wr(1, OpSend, 8))
	k.hears()
	must(t, k.modify(RTS))
	k.hears("SEND Only +0 8B")
	for _, st := range []State{Reset, Init, Err} {
		k := newTalk(t, UC)
		k.recvs(8)
		k.q.setState(st)
		k.say(pkt{op: bth.UCSendOnly})
		k.completes()
		k.equal("drops", k.Counters().DropNoQP, uint64(1))
	}
}

// A CQ that overruns while a response is processed stops the rest of that processing: what the
// response acknowledges, and its own READ.
func TestCQOverrunByResponse(t *testing.T) {
	for _, space := range []int{1, 2} { // for the WRITE's completion, or also for the READ's
		k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SendCQ, _ = NewCQ(space) })
		k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8), k.wr(3, OpRead, 8), k.wr(4, OpWrite, 8))
		k.listen()
		k.snapshot()
		k.say(pkt{op: bth.RCReadResponseOnly, psn: 2, data: seq(8)})
		k.is(Err)
		if space == 1 {
			k.unchanged() // the QP failed before the READ's data was stored
		}
		k.raises("CQ_ERR", "QP_FATAL")
		k.equal("SQLen", k.q.SQLen(), 0)
		k.hears()
	}
	// a fatal NAK with a full CQ
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SendCQ, _ = NewCQ(1) })
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8))
	k.listen()
	k.say(nak(1, bth.NAKRemoteAccess))
	k.is(Err)
	k.raises("CQ_ERR", "QP_FATAL")
}

// A duplicate without space is dropped. The requester must send it again.
func TestDuplicatesBeyondSpace(t *testing.T) {
	k := newTalk(t, RC) // space for 8
	for i := range 12 {
		k.say(k.read(i, 0, 1))
		k.listen()
	}
	for i := range 9 {
		k.say(k.read(i, 0, 1))
	}
	k.equal("drops", k.Counters().DropReplay, uint64(1))
	k.equal("answers", len(k.listen()), 8)
}

// The names are those of verbs, and an unknown value is shown as a number.
func TestNames(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{RC.String() + UC.String() + UD.String(), "RCUCUD"},
		{Type(9).String(), "unknown 9"},
		{SQE.String(), "SQE"},
		{OpWriteImm.String(), "RDMA_WRITE_WITH_IMM"},
		{RetryExcErr.String(), "transport retry counter exceeded"},
		{GeneralErr.String(), "general error"},
		{WCRecvWriteImm.String(), "RECV_RDMA_WITH_IMM"},
		{EventSRQLimitReached.String(), "SRQ_LIMIT_REACHED"},
		{(AttrState | AttrPathMTU | AttrRNRRetry).String(), "State, PathMTU, RNRRetry"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
