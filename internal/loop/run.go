package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// handleRun handles the packets of a received run, like handleFrame.
func (l *Loop) handleRun(now qp.Time, b *driver.Buf, next bool) bool {
	for i := 0; i*b.Size < len(b.B); i++ {
		if i > 0 && next {
			var n int
			n, next = l.handleParts(now, b, i)
			if i += n; i*b.Size >= len(b.B) {
				break
			}
		}
		next = l.handleOverlapping(now, b, i, next)
	}
	return next
}

// handleOverlapping is handleFrame for packet i of a run.
func (l *Loop) handleOverlapping(now qp.Time, b *driver.Buf, i int, next bool) bool {
	end := l.saveEnd(b, i)
	f := l.overlapper.Frame(b, i)
	packet := min(b.Size, len(b.B)-i*b.Size)
	l.runHeader = append(l.runHeader[:0], f[:len(f)-packet]...)
	ok := l.accept(f)
	if ok && len(end) > 0 {
		h := &l.pkt.NetHeader
		*h = l.netHeader[:copy(l.netHeader[:], *h)]
	}
	copy(end, l.overlapped[:])
	return ok && l.handlePacket(now, next)
}

// saveEnd saves the end of packet i-1 of a run in l.overlapped, where the headers of packet i
// overwrite it, and returns it. It does so only if there is a Guest, which needs the payload until
// the end of the step.
func (l *Loop) saveEnd(b *driver.Buf, i int) []byte {
	if l.guest == nil {
		return nil
	}
	at := i * b.Size
	end := b.B[max(0, at-bth.MaxNetHeader):at] // empty before the first packet
	copy(l.overlapped[:], end)
	return end
}

// handleParts handles packets of a run from number i on, of which the engine has handled the one
// before, as long as they are middle packets of its message. It returns their number. Their headers
// are those of that packet, so it checks only the ICRC.
func (l *Loop) handleParts(now qp.Time, b *driver.Buf, i int) (n int, next bool) {
	if l.tracer != nil || !l.eng.ExpectsRun(&l.pkt) {
		return 0, true
	}
	for ; (i+1)*b.Size <= len(b.B); i++ {
		packet := b.B[i*b.Size:][:b.Size-bth.ICRCLen]
		ok := l.checkPart(b, i)
		if ok && !l.eng.HandlePart(now, packet) {
			break
		}
		n++
		l.ctr.RxFrames++
		l.ctr.RxBytes += uint64(len(l.runHeader) + b.Size)
		if !ok {
			l.ctr.Drops[frame.ReasonICRC]++
			return n, false
		}
		l.coalesce.count(bth.BTH(packet).AckReq(), true)
	}
	return n, true
}

// checkPart reports whether the ICRC of packet i of a run is correct. l.runHeader has the headers
// of the packet before, and gets those of this one.
func (l *Loop) checkPart(b *driver.Buf, i int) bool {
	h := l.runHeader
	frame.NextID(h)
	end := l.saveEnd(b, i)
	f := b.B[i*b.Size-len(h):][:len(h)+b.Size]
	copy(f, h)
	ok := l.dec.CheckICRC(f, len(h))
	copy(end, l.overlapped[:])
	return ok
}
