package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// wr returns a signaled work request of n bytes for remote address 0x1000. The peer would check the
// R_Key.
func (k *talk) wr(id uint64, op Op, n int) SendWR {
	return SendWR{ID: id, Op: op, Flags: Signaled, SGEs: []SGE{k.sge(0, n)}, RemoteAddr: 0x1000,
		RKey: 9}
}

// IBA 9.7.3: requests are sent in the order of their posts with consecutive PSNs. The last posted
// packet asks for an ACK.
func TestRequestsInOrder(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 600), k.wr(2, OpSend, 0), k.wr(3, OpSendImm, 256), k.wr(4, OpRead, 300),
		k.wr(5, OpWriteImm, 8))
	k.hears(
		"RDMA WRITE First +0 dma=600 256B", "RDMA WRITE Middle +1 256B", "RDMA WRITE Last +2 88B",
		"SEND Only +3",
		"SEND Only with Immediate +4 256B",
		"RDMA READ Request +5 dma=300 ask",
		"RDMA WRITE Only with Immediate +7 dma=8 ask 8B",
	)
}

// IBA 9.7.5.1.2: an ACK acknowledges its PSN and everything before it. Completions come in the
// order of the posts.
func TestCoalescedACKCompletesAllBefore(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpSend, 300), k.wr(3, OpWriteImm, 8), k.wr(4, OpSend, 8))
	k.listen() // PSNs 0, 1-2, 3, 4
	k.say(ack(1))
	k.completes("1 success RDMA_WRITE 8B") // half of a SEND does not complete it
	k.say(ack(3))
	k.completes("2 success SEND 300B", "3 success RDMA_WRITE 8B")
	k.say(ack(4))
	k.completes("4 success SEND 8B")
}

// IBA 11.4.1.1: an unsignaled request that succeeds writes no CQE. One that fails or is flushed
// does. SignalAll overrides this.
func TestUnsignaled(t *testing.T) {
	quiet := func(k *talk, id uint64) SendWR { w := k.wr(id, OpWrite, 8); w.Flags = 0; return w }
	k := newTalk(t, RC)
	k.post(quiet(k, 1), quiet(k, 2), k.wr(3, OpWrite, 8), quiet(k, 4), quiet(k, 5))
	k.listen()
	k.say(ack(2))
	k.completes("3 success RDMA_WRITE 8B")
	k.say(nak(3, bth.NAKRemoteAccess))
	k.completes("4 remote access error", "5 Work Request Flushed Error")

	k = newTalk(t, RC, func(a *InitAttr, _ *Attr) { a.SignalAll = true })
	k.post(quiet(k, 1))
	k.listen()
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 8B")
}

// IBA 9.7.6.1: a response to something acknowledged before (a ghost), or never sent, is dropped and
// has no effect.
func TestGhosts(t *testing.T) {
	for _, s := range []bth.Syndrome{bth.ACKNoLimit, bth.RNRSyndrome(1),
		bth.NAKSyndrome(bth.NAKPSNSequence), bth.NAKSyndrome(bth.NAKRemoteAccess)} {
		for _, psn := range []int{0, -1, -1 << 22, 3, 4, 1 << 22} {
			k := newTalk(t, RC)
			k.post(k.wr(1, OpWrite, 8))
			k.listen()
			k.say(ack(0))
			k.completes("1 success RDMA_WRITE 8B")
			k.post(k.wr(2, OpWrite, 8), k.wr(3, OpWrite, 8))
			k.listen()
			k.say(answerPkt(psn, s))
			k.completes()
			k.hears()
			k.is(RTS)
			k.equal("ghosts", k.Counters().DropGhost, uint64(1))
			k.say(ack(2))
			k.completes("2 success RDMA_WRITE 8B", "3 success RDMA_WRITE 8B")
		}
	}
}

// All kinds of responses to an idle QP are ghosts.
func TestResponsesToIdleQP(t *testing.T) {
	for i := range 256 {
		info := bth.Opcode(i).Info()
		if info.Transport != bth.RC || !info.Response {
			continue
		}
		k := newTalk(t, RC)
		k.snapshot()
		k.say(pkt{op: info.Opcode, psn: 0, data: make([]byte, 8*b2i(info.HasPayload))})
		k.hears()
		k.completes()
		k.unchanged()
		k.is(RTS)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// IBA 9.9.2, 11.6.2: each fatal NAK code has its completion status. Requests before the refused one
// succeed, those after it are flushed, the QP goes to ERR, and nothing is retransmitted.
func TestNAKCodes(t *testing.T) {
	for _, c := range []struct {
		code bth.NAKCode
		want string
	}{
		{bth.NAKInvalidRequest, "remote invalid request error"},
		{bth.NAKRemoteAccess, "remote access error"},
		{bth.NAKRemoteOperational, "remote operation error"},
	} {
		k := newTalk(t, RC)
		k.recvs(10)
		k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 600), k.wr(3, OpSend, 8), k.wr(4, OpRead, 8))
		k.listen()
		k.say(nak(3, c.code)) // the last packet of the second
		k.completes("1 success RDMA_WRITE 8B", "2 "+c.want, "3 Work Request Flushed Error",
			"4 Work Request Flushed Error", "1 Work Request Flushed Error")
		k.hears()
		k.is(Err)
		k.equal("fatal NAKs", k.Counters().RcvdErrNAK, uint64(1))
	}
}

// Codes and syndromes that are reserved, or only for RD, cause no action. What they acknowledge
// counts, and the rest waits for its timeout.
func TestReservedNAKCodes(t *testing.T) {
	for _, s := range []bth.Syndrome{bth.NAKSyndrome(bth.NAKInvalidRD), bth.NAKSyndrome(5),
		bth.NAKSyndrome(31), 0x40, 0x80, 0xff} {
		k := newTalk(t, RC)
		k.post(k.wr(1, OpWrite, 8))
		k.listen()
		k.say(answerPkt(0, s))
		k.completes()
		k.is(RTS)
		k.say(ack(0))
		k.completes("1 success RDMA_WRITE 8B")
	}
}

// IBA 9.7.5.2.2: a sequence NAK acknowledges everything before its PSN. Everything from that PSN is
// retransmitted at once, with the same PSNs.
func TestSequenceNAKGoesBack(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 600), k.wr(3, OpSend, 8))
	k.listen()
	k.now += 10_000
	k.say(nak(2, bth.NAKPSNSequence))
	k.completes("1 success RDMA_WRITE 8B")
	k.hears("RDMA WRITE Middle +2 256B", "RDMA WRITE Last +3 88B", "SEND Only +4 ask 8B")
	k.equal("retransmissions", k.Counters().Retransmits, uint64(3))
	k.say(ack(4))
	k.completes("2 success RDMA_WRITE 600B", "3 success SEND 8B")
}

// A loss can be reported several times. What was already retransmitted is not sent a third time.
func TestRepeatedSequenceNAK(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8))
	k.listen()
	k.say(nak(0, bth.NAKPSNSequence))
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA WRITE Only +1 dma=8 ask 8B")
	k.say(nak(0, bth.NAKPSNSequence))
	k.hears()
	k.now += 20_000 // by now it reports another loss
	k.say(nak(0, bth.NAKPSNSequence))
	k.hears("RDMA WRITE Only +0 dma=8 8B", "RDMA WRITE Only +1 dma=8 ask 8B")
	k.say(nak(1, bth.NAKPSNSequence)) // another packet is always another loss
	k.hears("RDMA WRITE Only +1 dma=8 ask 8B")
}

// If a peer answers with nothing but sequence NAKs, the QP fails after maxNAKs without progress.
// The first ones are answered after a round trip. If they do not help, retransmissions become rare:
// they may be what delays the answers.
func TestEndlessSequenceNAKs(t *testing.T) {
	const interval = 20_000
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8))
	goBacks := func(naks int) uint64 {
		before := k.Counters().Retransmits
		for range naks {
			k.listen()
			k.now += interval
			k.say(nak(0, bth.NAKPSNSequence))
		}
		k.listen()
		return k.Counters().Retransmits - before
	}
	k.equal("retransmissions at first", goBacks(nakDoubleEvery), uint64(nakDoubleEvery))
	goBacks(2000)
	k.is(RTS)
	if n := goBacks(400); n < 1 || n > 4 {
		t.Errorf("%d retransmissions after 400 NAKs, want 1 to 4", n)
	}
	for range maxNAKs {
		goBacks(1 << maxNAKDoublings)
	}
	k.completes("1 transport retry counter exceeded")
}

// IBA 9.7.6.1: only its own response completes a READ or atomic. An ACK, or the response to a later
// one, that skips it shows that its response was lost. This is an implied NAK, and it is requested
// again at once. What has been answered is not requested again, and completes afterwards.
func TestImpliedNAK(t *testing.T) {
	resp := func(psn int) pkt {
		return pkt{op: bth.RCReadResponseOnly, psn: psn, syndrome: bth.ACKNoLimit, data: seq(8)}
	}
	for _, c := range []struct {
		name   string
		second Op
		answer pkt
		again  []string
		done   []string
	}{
		{"by an ACK", OpWrite, ack(2), nil,
			[]string{"2 success RDMA_READ 8B", "3 success RDMA_WRITE 8B"}},
		{"by a later READ response", OpRead, resp(2),
			[]string{"RDMA READ Request +2 dma=8 ask"}, []string{"2 success RDMA_READ 8B"}},
		{"by a later atomic's response", OpFetchAdd, pkt{op: bth.RCAtomicAck, psn: 2}, nil,
			[]string{"2 success RDMA_READ 8B", "3 success FETCH_ADD 8B"}},
		{"by a sequence NAK", OpWrite, nak(2, bth.NAKPSNSequence),
			[]string{"RDMA WRITE Only +2 dma=8 ask 8B"}, []string{"2 success RDMA_READ 8B"}},
		{"by a plain ACK of the READ itself", OpWrite, ack(1), nil,
			[]string{"2 success RDMA_READ 8B"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newTalk(t, RC)
			k.post(k.wr(1, OpWrite, 8), k.wr(2, OpRead, 8), k.wr(3, c.second, 8))
			k.listen()
			k.now += 10_000
			k.say(c.answer)
			k.completes("1 success RDMA_WRITE 8B") // everything before the READ is acknowledged
			k.hears(append([]string{"RDMA READ Request +1 dma=8 ask"}, c.again...)...)
			k.equal("implied NAKs", k.Counters().ImpliedNAK, uint64(1))
			k.say(resp(1))
			k.completes(c.done...)
		})
	}
}

// A response acknowledges every request before it (IBA 9.7.5.1.1).
func TestReadResponseAcknowledgesEarlierRequests(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpSend, 300), k.wr(3, OpRead, 8))
	k.listen()
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 3, syndrome: bth.ACKNoLimit, data: seq(8)})
	k.completes("1 success RDMA_WRITE 8B", "2 success SEND 300B", "3 success RDMA_READ 8B")
}

// A READ response for the PSN of a WRITE, or an atomic response for a READ, is dropped.
func TestResponseOfWrongKind(t *testing.T) {
	k := newTalk(t, RC)
	k.snapshot()
	k.post(k.wr(1, OpWrite, 8))
	k.listen()
	k.say(pkt{op: bth.RCReadResponseOnly, psn: 0, data: seq(8)},
		pkt{op: bth.RCAtomicAck, psn: 0, orig: 5})
	k.completes()
	k.unchanged()
	k.say(ack(0))
	k.completes("1 success RDMA_WRITE 8B")
	k.post(k.wr(2, OpRead, 8))
	k.listen()
	k.say(pkt{op: bth.RCAtomicAck, psn: 1, orig: 5})
	k.completes()
	k.unchanged()
	k.equal("ghosts", k.Counters().DropGhost, uint64(3))
}

// Credits and MSN of an ACK are ignored; its PSN counts (as in the kernel's rxe).
func TestCreditsAndMSNIgnored(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpSend, 8), k.wr(2, OpSend, 8))
	k.listen()
	p := answerPkt(0, bth.ACKSyndrome(0))
	p.msn = 0
	k.say(p)
	k.completes("1 success SEND 8B")
	p.psn, p.msn = 1, 0xffffff
	k.say(p)
	k.completes("2 success SEND 8B")
}

// Late ACKs for packets that a retransmission has not reached yet are used.
func TestLateACKOvertakesRetransmission(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8), k.wr(3, OpWrite, 8))
	k.listen()
	k.say(nak(0, bth.NAKPSNSequence), ack(1))
	k.completes("1 success RDMA_WRITE 8B", "2 success RDMA_WRITE 8B")
	k.hears("RDMA WRITE Only +2 dma=8 ask 8B")
}

// A message of many packets asks for ACKs in between, so that the window moves (ackInterval).
func TestAckRequestsWithinMessage(t *testing.T) {
	k := newTalk(t, RC)
	k.post(k.wr(1, OpWrite, 60*talkMTU))
	asked := 0
	ps := k.listen()
	for _, p := range ps {
		if p.BTH.AckReq() {
			asked++
		}
	}
	k.equal("packets", len(ps), 60)
	if asked < 2 || asked > 4 {
		t.Errorf("%d of %d packets ask for an ACK", asked, len(ps))
	}
}
