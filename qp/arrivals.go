package qp

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// Middle packets of a message differ only in PSN and payload, on arrival as well. If one of them
// was executed, HandleNext executes the next ones without most checks.

// arrivals is what HandleNext knows of the SEND, WRITE or READ to which the last packet belongs.
type arrivals struct {
	q     *QP        // nil: the last packet belongs to none of them, or ends it
	rest  []byte     // memory for the packets that follow; nil: not known yet
	owner mr.Backing // of rest; nil: this process
	head  uint64     // of middle packets: the BTH before AckReq and PSN
	read  bool       // they are responses to a READ
	acked uint64     // such packets that were not passed to progress yet
}

// HandleNext is HandlePacket for a middle packet that follows the last packet.
// The caller makes no other call to the engine in between except Prefetch, and calls HandleEnd
// after the last packet. The result is false if HandlePacket must handle the packet.
func (e *Engine) HandleNext(now Time, p *bth.Packet) bool {
	a := &e.arrivals
	if a.q == nil || a.rest == nil && !a.prepare(p) {
		return false
	}
	return e.ExpectsRun(p) && e.HandlePart(now, p.BTH)
}

// ExpectsRun reports whether packets with the network headers of p, the last packet, may be passed
// to HandlePart.
func (e *Engine) ExpectsRun(p *bth.Packet) bool {
	a := &e.arrivals
	return a.q != nil && a.rest != nil && p.TrafficClass&ecnMask != ecnCE && a.q.path.Matches(p)
}

// HandlePart is HandleNext for a packet with known network headers; see ExpectsRun. b extends from
// the BTH to the end of the payload.
func (e *Engine) HandlePart(now Time, b []byte) bool {
	a := &e.arrivals
	q := a.q
	psn := q.epsn
	if a.read {
		if psn = q.una; psn == q.max {
			return false
		}
	}
	h, payload := bth.BTH(b), b[bth.HeaderLen:]
	n := uint32(len(payload))
	if binary.BigEndian.Uint64(h) != a.head || h.PSN() != wirePSN(psn) || n != q.mtu.Load() ||
		int(n) > len(a.rest) {
		return false
	}
	e.c.RcvdPkts++
	e.c.RcvdBytes += uint64(n)
	q.meter().rcvd += uint64(n)
	if a.owner == nil {
		mr.CopyIn(a.rest, payload)
	} else {
		a.owner.Store(a.rest[:n], payload, false)
	}
	a.rest = a.rest[n:]
	if a.read {
		q.una++
		a.acked++
		return true
	}
	q.off += n
	q.accepted(now, false, h.AckReq())
	return true
}

// HandleEnd ends a batch of packets, some of which HandleNext may have handled. It also
// forgets registered memory, which the garbage collector can then free after its deregistration.
func (e *Engine) HandleEnd(now Time) {
	a := &e.arrivals
	q, n := a.q, a.acked
	a.q, a.rest, a.owner, a.acked = nil, nil, nil, 0
	if n > 0 {
		q.progress(now, n)
	}
}

// expectNext prepares for HandleNext after a packet that does not end its message.
func (q *QP) expectNext() { q.eng.arrivals = arrivals{q: q} }

// prepare finds the memory for the packets that follow, the first of which is p.
func (a *arrivals) prepare(p *bth.Packet) bool {
	q := a.q
	if len(p.BTH) != bth.HeaderLen+len(p.Payload) || // pad in the middle of a message
		q.typ != RC || q.State() == Err || p.BTH.DestQP() != q.qpn || !q.pkeyOK(p.BTH.PKey()) {
		return false
	}
	switch p.BTH.Opcode() {
	case bth.RCSendMiddle:
		a.rest, a.owner = q.restOfSend()
	case bth.RCWriteMiddle:
		a.rest, a.owner = q.restOfWrite()
	case bth.RCReadResponseMiddle:
		a.rest, a.owner = q.restOfRead()
		a.read = true
	}
	a.head = binary.BigEndian.Uint64(p.BTH)
	return a.rest != nil
}

// restOfSend returns the memory for the rest of the SEND in progress, as far as it is contiguous,
// and the owner of that memory, nil if it is this process. Like the functions below, it returns no
// memory if HandleNext may not use any.
func (q *QP) restOfSend() ([]byte, mr.Backing) {
	r := &q.recv
	if q.msg != msgSend || q.refused {
		return nil, nil
	}
	pd := q.pd
	if q.srq != nil {
		pd = q.srq.pd
	}
	return q.eng.contiguous(pd, r.sges[:r.nsge], q.off, r.length-q.off, mr.LocalWrite)
}

// restOfWrite returns the memory for the rest of the WRITE in progress.
func (q *QP) restOfWrite() ([]byte, mr.Backing) {
	if q.msg != msgWrite || q.refused {
		return nil, nil
	}
	return q.remoteBytes(q.key, q.va+uint64(q.off), q.dma-q.off, mr.RemoteWrite)
}

// restOfRead returns the memory for the rest of the oldest READ, as far as it is contiguous, and
// without the last byte: HandlePacket handles the packet that ends the READ.
func (q *QP) restOfRead() ([]byte, mr.Backing) {
	s := &q.sq
	tail := s.tail.Load()
	w := s.at(tail)
	if q.win.repairing || tail == s.started || w.op != OpRead {
		return nil, nil
	}
	off := uint32(q.una-w.psn) * q.mtu.Load()
	return q.eng.contiguous(q.pd, s.sgesAt(tail), off, w.length-1-off, mr.LocalWrite)
}

// contiguous returns the memory at offset off of an SGE list up to the end of that SGE, but at most
// n bytes, and the owner of the memory. It returns no memory if the key does not grant need. Of
// memory of another process that is only read (need is 0), it returns what QP.load has loaded.
func (e *Engine) contiguous(pd *mr.PD, sges []SGE, off, n uint32, need mr.Access) (
	[]byte, mr.Backing) {
	for _, g := range sges {
		if off >= g.Length {
			off -= g.Length
			continue
		}
		mem, v := e.mrs.CheckLocal(pd, mr.Key(g.LKey), g.Addr+uint64(off), min(g.Length-off, n), need)
		switch {
		case v == mr.OK:
			return mem, nil
		case v != mr.Foreign:
			return nil, nil
		case need == 0:
			mem = mem[:min(uint32(len(mem)), -off%loadChunk)] // up to the next chunk
		}
		return mem, e.mrs.LocalBacking(mr.Key(g.LKey))
	}
	return nil, nil
}

// remoteBytes does the same for the range of an R_Key.
func (q *QP) remoteBytes(key bth.RKey, va uint64, n uint32, need mr.Access) ([]byte, mr.Backing) {
	switch mem, v := q.eng.mrs.CheckScope(q.pd, q.scope, mr.Key(key), va, n, need); v {
	case mr.OK:
		return mem, nil
	case mr.Foreign:
		return mem, q.eng.mrs.RemoteBacking(mr.Key(key))
	}
	return nil, nil
}
