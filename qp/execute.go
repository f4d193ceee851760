package qp

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// lengthOK checks the length of a packet: FIRST and MIDDLE carry exactly the path MTU, LAST 1 byte
// to the path MTU, ONLY 0 bytes to the path MTU (IBA 9.7.4.1.6).
func (q *QP) lengthOK(p *bth.Packet) bool {
	n, mtu := uint32(len(p.Payload)), q.mtu.Load()
	switch {
	case !p.Info.End:
		return n == mtu
	case !p.Info.Start:
		return n >= 1 && n <= mtu
	default:
		return n <= mtu
	}
}

// executeSend scatters a SEND packet to its receive. The last packet may invalidate a key (IBA
// 9.4.1.1).
func (q *QP) executeSend(p *bth.Packet) verdict {
	if p.Info.Start {
		q.off = 0
	} else if q.msg != msgSend {
		return refuseInvalid
	}
	if !q.recv.held && !q.takeRecv() {
		return refuseRNR
	}
	n := uint32(len(p.Payload))
	if !q.lengthOK(p) {
		return refuseInvalid
	}
	if n > q.recv.length-q.off {
		q.failRecv(LocLenErr)
		return refuseInvalid
	}
	if st := q.scatterRecv(q.off, p.Payload); st != Success {
		q.failRecv(st)
		return refuseOperation
	}
	q.off += n
	q.msg = msgSend
	if !p.Info.End {
		return accept
	}
	q.msg = msgNone
	if p.Info.HasInv {
		if err := q.eng.mrs.InvalidateScope(q.pd, q.scope, mr.Key(p.IETH().RKey())); err != nil {
			// IBA 9.9.3 class J: no NAK is sent.
			q.failRecv(MWBindErr)
			q.toErr()
			return drop
		}
	}
	q.received(p, WCRecv, q.off)
	return accept
}

// received completes the current receive.
func (q *QP) received(p *bth.Packet, op WCOpcode, n uint32) {
	wc := WC{ID: q.recv.id, Opcode: op, ByteLen: n, QPN: q.qpn, SrcQP: q.destQP}
	if p.Info.HasImm {
		wc.Flags, wc.Imm = wc.Flags|WCWithImm, p.ImmDt().Imm()
	}
	if p.Info.HasInv {
		wc.Flags, wc.InvKey = wc.Flags|WCWithInv, p.IETH().RKey()
	}
	if q.typ == UD {
		wc.Flags, wc.SrcQP = wc.Flags|WCGRH, p.DETH().SrcQP()
		if len(p.NetHeader) < GRHLen { // RoCEv2 annex A17.4.5.1
			wc.Flags |= WCIPv4
		}
	}
	solicited := p.BTH.Solicited()
	if solicited {
		wc.Flags |= WCSolicited
	}
	q.recv.held = false
	q.complete(q.recvCQ, &wc, solicited)
}

func (q *QP) failRecv(st Status) {
	q.recv.held = false
	q.complete(q.recvCQ, &WC{ID: q.recv.id, Status: st, Opcode: WCRecv, QPN: q.qpn}, false)
}

func (q *QP) executeWrite(p *bth.Packet) verdict {
	if p.Info.Start && p.Info.End && !p.Info.HasImm {
		return q.executeWriteOnly(p)
	}
	dst, v := q.beginWrite(p)
	if v != accept {
		return v
	}
	n := uint32(len(p.Payload))
	left := q.dma - q.off
	if !q.lengthOK(p) || n > left || (p.Info.End && n != left) {
		return refuseInvalid
	}
	// Take the receive before writing memory: a WRITE that is refused with an RNR NAK has no
	// effect.
	if p.Info.HasImm && !q.recv.held && !q.takeRecv() {
		return refuseRNR
	}
	if !p.Info.Start { // the region may have been deregistered since the first packet
		if dst, v = q.checkRemote(q.key, q.va+uint64(q.off), n, mr.RemoteWrite); v != accept {
			return v
		}
	}
	q.eng.place(dst, p)
	q.off += n
	q.msg = msgWrite
	if !p.Info.End {
		return accept
	}
	q.msg = msgNone
	if p.Info.HasImm {
		q.received(p, WCRecvWriteImm, q.dma)
	}
	return accept
}

// executeWriteOnly is executeWrite for the most frequent message, which leaves no state behind.
func (q *QP) executeWriteOnly(p *bth.Packet) verdict {
	if q.access&mr.RemoteWrite == 0 {
		return refuseInvalid
	}
	h := p.RETH()
	dst, v := q.checkRemote(h.RKey(), h.VA(), h.DMALen(), mr.RemoteWrite)
	if v != accept {
		return v
	}
	if !q.lengthOK(p) || uint32(len(p.Payload)) != h.DMALen() {
		return refuseInvalid
	}
	q.eng.place(dst, p)
	return accept
}

// beginWrite checks the first packet of a WRITE and returns its whole range, which must be
// accessible before the first byte is written (IBA 9.7.4.1.5). For other packets it checks that
// they continue a WRITE.
func (q *QP) beginWrite(p *bth.Packet) ([]byte, verdict) {
	if !p.Info.Start {
		if q.msg != msgWrite {
			return nil, refuseInvalid
		}
		return nil, accept
	}
	if q.access&mr.RemoteWrite == 0 {
		return nil, refuseInvalid
	}
	h := p.RETH()
	q.va, q.key, q.dma, q.off = h.VA(), h.RKey(), h.DMALen(), 0
	return q.checkRemote(q.key, q.va, q.dma, mr.RemoteWrite)
}

// checkRemote checks a range and returns its memory. A zero-length operation needs no valid key
// (IBA 9.7.4.1.5).
func (q *QP) checkRemote(key bth.RKey, va uint64, n uint32, need mr.Access) ([]byte, verdict) {
	if n == 0 {
		return nil, accept
	}
	if n > MaxMessage {
		return nil, refuseInvalid
	}
	var s *mr.Scope
	if q.scoped { // otherwise do not touch its cache line
		s = q.scope
	}
	b, v := q.eng.mrs.CheckScope(q.pd, s, mr.Key(key), va, n, need)
	if v != mr.OK && v != mr.Foreign {
		return nil, refuseAccess
	}
	q.eng.aim(key, v)
	return b, accept
}

// executeRead queues the answer to a READ (IBA 9.4.4). An operation that the QP does not allow is
// an invalid request (IBA 9.7.4.1.4).
func (q *QP) executeRead(p *bth.Packet) verdict {
	if q.access&mr.RemoteRead == 0 || len(p.Payload) > 0 {
		return refuseInvalid
	}
	h := p.RETH()
	a := answer{psn: q.epsn, va: h.VA(), key: h.RKey(), length: h.DMALen(), fresh: true}
	if _, v := q.checkRemote(a.key, a.va, a.length, mr.RemoteRead); v != accept {
		return v
	}
	a.npkts = q.readPackets(a.length)
	return q.queue(a)
}

// readPackets returns the number of packets in the answer to a READ of n bytes.
func (q *QP) readPackets(n uint32) uint32 {
	if n == 0 {
		return 1
	}
	return (n-1)/q.mtu.Load() + 1
}

func (q *QP) executeAtomic(p *bth.Packet) verdict {
	h := p.AtomicETH()
	if q.access&mr.RemoteAtomic == 0 || h.VA()&(atomicLen-1) != 0 || len(p.Payload) > 0 {
		return refuseInvalid // IBA 9.4.5: the address must be aligned
	}
	mem, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(h.RKey()), h.VA(), atomicLen,
		mr.RemoteAtomic)
	var backing mr.Backing
	if v == mr.Foreign {
		backing = q.eng.mrs.RemoteBacking(mr.Key(h.RKey()))
	}
	if v != mr.OK && (backing == nil || !backing.Load(mem)) {
		return refuseAccess
	}
	if v := q.answers.freshSpace(); v != accept {
		return v
	}
	a := answer{psn: q.epsn, npkts: 1, atomic: true, fresh: true}
	if p.Info.Op == bth.OpFetchAdd {
		a.orig = mr.FetchAdd(mem, h.SwapAdd())
	} else {
		a.orig = mr.CompareSwap(mem, h.Compare(), h.SwapAdd())
	}
	if backing != nil {
		backing.Store(mem, mem, true)
	}
	q.queue(a)
	q.save(savedAtomic{psn: a.psn, orig: a.orig, msn: q.msn})
	return acceptQueued
}
