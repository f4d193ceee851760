package qp

import (
	"errors"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

func (k *talk) modify(st State) error {
	return k.q.Modify(k.now, &Attr{State: st}, AttrState)
}

// IBA 10.3.1.7: entering ERR completes everything posted with a flush error, in the order of each
// queue. The timer stops and nothing is sent.
func TestFlushOnEnteringErr(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(8, 8)
	quiet := k.wr(2, OpWrite, 8)
	quiet.Flags = 0 // flushed requests always get a CQE
	k.post(k.wr(1, OpRead, 8), quiet, k.wr(3, OpSend, 8))
	k.listen()
	must(t, k.modify(Err))
	const f = " Work Request Flushed Error"
	k.completes("1"+f, "2"+f, "3"+f, "1"+f, "2"+f)
	k.hears()
	k.now += second
	k.hears()
	k.equal("Timers", k.Counters().Timers, uint64(0))
	k.say(ack(2), k.write(0, seq(8)))
	k.hears()
	k.completes()
}

// IBA 10.3.1.7: posting in ERR succeeds, and the requests and receives are flushed.
func TestPostInErr(t *testing.T) {
	k := newTalk(t, RC)
	must(t, k.modify(Err))
	must(t, k.modify(Err)) // a second time has no effect
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpRead, 8))
	k.recvs(8)
	k.completes()
	k.HandleDoorbells(k.now)
	const f = " Work Request Flushed Error"
	k.completes("1"+f, "2"+f, "1"+f)
	k.hears()
}

// The receive of a partly received message is flushed once.
func TestFlushOfPartlyReceivedMessage(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(600, 600)
	k.say(pkt{op: bth.RCSendFirst, data: seq(256)})
	k.hears("ACK +0 msn=0")
	must(t, k.modify(Err))
	k.completes("1 Work Request Flushed Error", "2 Work Request Flushed Error")
}

// IBA 10.3.1.1: RESET discards everything without completions. The QP can be connected again with
// other PSNs.
func TestReset(t *testing.T) {
	k := newTalk(t, RC)
	k.recvs(600, 600)
	k.post(k.wr(1, OpWrite, 600), k.wr(2, OpRead, 8))
	k.say(k.fetchAdd(0, 0, 1), pkt{op: bth.RCSendFirst, psn: 1, data: seq(256)}, k.write(9, nil))
	must(t, k.modify(Reset))
	k.hears()
	k.completes()
	if _, armed := k.NextTimeout(); armed {
		t.Error("a timer is still armed")
	}
	k.equal("SQLen+RQLen", k.q.SQLen()+k.q.RQLen(), 0)
	at := connectAttr()
	at.RQPSN, at.SQPSN = 5, 7
	k.connect(k.q, at, 1, peerQPN)
	k.base = 5
	k.post(k.wr(3, OpWrite, 8))
	k.hears("RDMA WRITE Only +2 dma=8 ask 8B")
	k.say(ack(2), k.write(0, seq(3)))
	k.hears("ACK +0 msn=1")
	k.completes("3 success RDMA_WRITE 8B")
}

// After RESET a slot of a failed request can be used again.
func TestResetAfterFailure(t *testing.T) {
	k := newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SQDepth = 1 })
	m, _ := k.region(k.pd, 64, 0)
	k.post(SendWR{ID: 1, Op: OpSend,
		SGEs: []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}})
	must(t, k.mrs.Deregister(m))
	k.hears()
	k.completes("1 local protection error")
	must(t, k.modify(Reset))
	k.connect(k.q, connectAttr(), 1, peerQPN)
	k.base = 0xfffff0
	k.post(k.wr(2, OpSend, 8))
	k.hears("SEND Only +0 ask 8B")
}

// IBA 10.3.1.5: in SQD requests in progress are completed. Then SQ_DRAINED is raised, and nothing
// new starts before RTS. Requests can be posted all the time.
func TestDrain(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 600), k.wr(2, OpRead, 8))
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	k.PollTransmit(k.now, buf[:]) // one packet of three
	must(t, k.modify(SQD))
	k.raises()
	k.hears("RDMA WRITE Middle +1 256B", "RDMA WRITE Last +2 ask 88B") // the READ does not start
	k.say(ack(1))
	k.raises()
	k.now += 10_000
	k.say(nak(2, bth.NAKPSNSequence)) // losses are repaired
	k.hears("RDMA WRITE Last +2 ask 88B")
	k.post(k.wr(3, OpSend, 8))
	k.say(ack(2))
	k.completes("1 success RDMA_WRITE 600B")
	k.raises("SQ_DRAINED")
	k.hears()
	must(t, k.modify(RTS))
	k.hears("RDMA READ Request +3 dma=8 ask", "SEND Only +4 ask 8B")
	k.raises()
}

// The queue is drained when the message is complete, not when the packets sent so far are
// acknowledged.
func TestDrainWaitsForTheWholeMessage(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 600))
	k.HandleDoorbells(k.now)
	var buf [2048]byte
	k.PollTransmit(k.now, buf[:])
	k.say(ack(0)) // nothing in flight, two packets to send
	must(t, k.modify(SQD))
	k.raises()
	k.hears("RDMA WRITE Middle +1 256B", "RDMA WRITE Last +2 ask 88B")
	k.raises()
	k.say(ack(2))
	k.raises("SQ_DRAINED")

	u := newTalk(t, UC)
	u.post(u.wr(1, OpWrite, 600))
	u.HandleDoorbells(u.now)
	u.PollTransmit(u.now, buf[:])
	must(t, u.modify(SQD))
	u.raises()
	u.hears("RDMA WRITE Middle +1 256B", "RDMA WRITE Last +2 88B")
	u.raises("SQ_DRAINED")
}

// An idle send queue is drained at once. The responder works in SQD.
func TestDrainOfIdleQueue(t *testing.T) {
	for _, typ := range []Type{RC, UC, UD} {
		k := newTalk(t, typ)
		must(t, k.modify(SQD))
		k.raises("SQ_DRAINED")
		must(t, k.modify(RTS))
		k.raises()
	}
	k := newTalk(t, RC)
	must(t, k.modify(SQD))
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=1")
}

// IBA 10.3.1.5: in SQD attributes change only after the queue has drained, because requests in
// progress started with the old ones. Pending responses are not lost.
func TestModifyWhileDraining(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpRead, 8))
	k.listen()
	must(t, k.modify(SQD))
	a := Attr{State: SQD, MaxRdAtomic: 1, MaxDestRdAtomic: 1}
	if err := k.q.Modify(k.now, &a, AttrState|AttrMaxRdAtomic); !errors.Is(err, ErrQPState) {
		t.Errorf("while a READ is outstanding: %v", err)
	}
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 0, data: seq(8)})
	k.raises("SQ_DRAINED")
	must(t, k.q.Modify(k.now, &a, AttrState|AttrMaxRdAtomic))
	k.say(k.read(0, 0, 300))
	if err := k.q.Modify(k.now, &a, AttrState|AttrMaxDestRdAtomic); !errors.Is(err, ErrQPState) {
		t.Errorf("while a READ is being answered: %v", err)
	}
	k.listen()
	must(t, k.q.Modify(k.now, &a, AttrState|AttrMaxDestRdAtomic))
}

// Saved results are kept when their number changes: an atomic whose response was lost is still
// answered.
func TestSavedResultsSurviveModify(t *testing.T) {
	k := newTalk(t, RC) // 4 saved
	for i := range 3 {
		k.say(k.fetchAdd(i, 0, 1))
	}
	k.listen()
	must(t, k.modify(SQD))
	must(t, k.q.Modify(k.now, &Attr{State: SQD, MaxDestRdAtomic: 2}, AttrState|AttrMaxDestRdAtomic))
	k.say(k.fetchAdd(2, 0, 1))
	k.hears("ATOMIC Acknowledge +2 msn=3 orig=2")
	k.say(k.fetchAdd(1, 0, 1))
	k.hears("ATOMIC Acknowledge +1 msn=2 orig=1")
	k.say(k.fetchAdd(0, 0, 1))
	k.hears()
	k.say(k.fetchAdd(3, 0, 1), k.fetchAdd(1, 0, 1)) // the newest replaced the oldest
	k.hears("ATOMIC Acknowledge +3 msn=4 orig=3")
	k.equal("word", k.word(0), uint64(4))
}

// IBA 11.4.1.1, 9.5: a fenced request starts when earlier READs and atomics are complete. It does
// not wait for WRITEs and SENDs.
func TestFence(t *testing.T) {
	k := newTalk(t, RC)
	fenced := k.wr(4, OpSend, 8)
	fenced.Flags |= Fence
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpRead, 8), k.wr(3, OpFetchAdd, 8), fenced,
		k.wr(5, OpWrite, 8))
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA READ Request +1 dma=8 ask", "FetchAdd +2 ask")
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 1, data: seq(8)})
	k.hears()
	k.say(pkt{op: bth.RCAtomicAck, psn: 2})
	k.hears("SEND Only +3 8B", "RDMA WRITE Only +4 dma=8 ask 8B")

	k = newTalk(t, RC)
	fenced = k.wr(2, OpSend, 8)
	fenced.Flags |= Fence
	k.post(k.wr(1, OpWrite, 8), fenced)
	k.hears("RDMA WRITE Only +0 dma=8 8B", "SEND Only +1 ask 8B")
}

// The fence works if the READ before it must be retransmitted.
func TestFenceAcrossRetry(t *testing.T) {
	k := newTalk(t, RC)
	fenced := k.wr(2, OpSend, 8)
	fenced.Flags |= Fence
	k.post(k.wr(1, OpRead, 300), fenced)
	k.hears("RDMA READ Request +0 dma=300 ask")
	k.say(pkt{op: bth.RCReadResponseFirst, psn: 0, data: seq(256)})
	k.now += initialRTO + second/100
	k.hears("RDMA READ Request +1 dma=44 ask")
	k.say(pkt{op: bth.RCReadResponseLast, psn: 1, data: seq(44)})
	k.hears("SEND Only +2 ask 8B")
}

// IBA 10.3.1.6: on UC and UD an error of the send queue stops only that queue (SQE): the failed
// request and those after it complete, new ones are flushed, receiving continues, and RTS enables
// sending again.
func TestSendQueueError(t *testing.T) {
	for _, typ := range []Type{UC, UD} {
		k := newTalk(t, typ)
		ok := func(id uint64) SendWR {
			p := k.path(1)
			return SendWR{ID: id, Op: OpSend, Flags: Signaled, Inline: seq(4), AH: NewAH(&p, nil),
				RemoteQPN: peerQPN}
		}
		m, _ := k.region(k.pd, 64, 0)
		dying := ok(2)
		dying.Inline, dying.SGEs = nil, []SGE{{Addr: m.Addr(), Length: 8, LKey: bth.LKey(m.LKey())}}
		k.recvs(100)
		k.post(ok(1), dying, ok(3))
		must(t, k.mrs.Deregister(m))
		k.hears("SEND Only +0 4B")
		k.completes("1 success SEND 4B", "2 local protection error", "3 Work Request Flushed Error")
		k.is(SQE)
		k.post(ok(4))
		k.hears()
		k.completes("4 Work Request Flushed Error")
		if typ == UC {
			k.say(pkt{op: bth.UCSendOnly, data: seq(5)})
			k.completes("1 success RECV 5B")
		} else {
			k.say(pkt{op: bth.UDSendOnly, data: seq(5), qkey: 0x1234})
			k.completes("1 success RECV 45B")
		}
		must(t, k.modify(RTS))
		k.hears()
		k.post(ok(5))
		k.hears("SEND Only +1 4B")
		k.completes("5 success SEND 4B")
	}
}
