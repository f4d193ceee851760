package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// receive handles the n frames in rx.
func (l *Loop) receive(now qp.Time, n int) int {
	if n == 0 {
		return 0
	}
	l.unreleased = n
	l.dec.SetTime(int64(now))
	ahead := 0
	if n >= minPrefetch {
		ahead = l.eng.PrefetchBatch()
	}
	next := false // the engine has handled the frame before, of the same batch
	for i := range l.rx[:n] {
		if ahead > 0 && i%ahead == 0 {
			l.prefetch(l.rx[i:min(i+ahead, n)])
		}
		if b := &l.rx[i]; b.Token&driver.NoHeaders != 0 {
			next = l.handleRun(now, b, next)
		} else {
			next = l.handleFrame(now, b.B, next)
		}
	}
	l.eng.HandleEnd(now)
	// In virtual time there is no latency to save. A guest still needs the payloads.
	if l.ticks == nil && l.guest == nil {
		l.releaseFrames()
	}
	return n
}

// releaseFrames returns the received frames to the port. The loop calls it before the next poll,
// not right after it has handled the frames: a reply to them then leaves some 15 ns sooner.
func (l *Loop) releaseFrames() {
	if l.unreleased > 0 {
		l.port.Release(l.rx[:l.unreleased])
		l.unreleased = 0
	}
}

// prefetch lets the engine prefetch what a batch of frames will touch.
func (l *Loop) prefetch(bufs []driver.Buf) {
	for i := range bufs {
		switch b := bufs[i].B; {
		case bufs[i].Token&driver.NoHeaders == 0:
			l.previews[i] = frame.PeekBTH(b)
		case len(b) >= bth.HeaderLen+bth.ICRCLen:
			l.previews[i] = b
		default: // the end of a forged run
			l.previews[i] = nil
		}
	}
	l.eng.Prefetch(l.previews[:len(bufs)])
}

// handleFrame handles a frame. next says that the engine has handled the frame before it, and was
// not called since then. The result says that about the next frame.
func (l *Loop) handleFrame(now qp.Time, b []byte, next bool) bool {
	return l.accept(b) && l.handlePacket(now, next)
}

// accept decodes a frame and checks its addresses.
func (l *Loop) accept(b []byte) bool {
	l.ctr.RxFrames++
	l.ctr.RxBytes += uint64(len(b))
	if r := l.dec.Decode(b, &l.pkt); r != frame.ReasonOK {
		l.ctr.Drops[r]++
		return false
	}
	if !l.isLocal(&l.pkt.Dst) {
		if l.pkt.BTH.DestQP() != bth.QPNMulticast || !l.eng.HasGroup(&l.pkt.Dst) {
			l.ctr.NotLocal++
			return false
		}
		if !groupMACOK(b[:6], &l.pkt.Dst) {
			l.ctr.WrongMAC++
			return false
		}
	} else if b[0]&groupBit != 0 { // a unicast packet in a multicast frame
		l.ctr.WrongMAC++
		return false
	}
	return true
}

// handlePacket handles the packet that was decoded last, like handleFrame.
func (l *Loop) handlePacket(now qp.Time, next bool) bool {
	// The engine compares the addresses and the VLAN of other packets with the path of their QP.
	if l.pkt.Info.Transport == bth.UD && !l.acceptDatagram() {
		return false
	}
	if l.tracer != nil {
		l.tracer.f(false, l.pkt.BTH.DestQP(), &l.pkt)
	}
	if l.pkt.BTH.DestQP() == bth.QPNGSI {
		l.eng.HandleEnd(now)
		l.host.HandleQP1(now, &l.pkt)
		return false
	}
	// Packets that belong to no QP must not delay those that do.
	if next && l.eng.HandleNext(now, &l.pkt) || l.eng.HandlePacket(now, &l.pkt) {
		l.coalesce.packet(&l.pkt)
	}
	return true
}

// groupBit is the bit in the first byte of a MAC that marks multicast and broadcast.
const groupBit = 1

// acceptDatagram checks the VLAN and the source address of the packet, and counts it if it must be
// dropped.
func (l *Loop) acceptDatagram() bool {
	if l.pkt.VLANID() != l.vlan {
		l.ctr.WrongVLAN++
		return false
	}
	if !l.sources.accept(&l.pkt.Src) {
		l.ctr.BadSource++
		return false
	}
	return true
}

// isLocal keeps the address that was used last at the front, because most traffic goes to one
// address for a while.
func (l *Loop) isLocal(g *bth.GID) bool {
	for i := range l.local {
		if l.local[i] == *g {
			if i > 0 {
				l.local[0], l.local[i] = l.local[i], l.local[0]
			}
			return true
		}
	}
	return false
}
