package loop

import (
	"encoding/binary"

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

// handleOverlapping is handleFrame for packet i of a run. A Guest needs the payload of the packet
// before, whose end the headers overwrite, until the end of the step.
func (l *Loop) handleOverlapping(now qp.Time, b *driver.Buf, i int, next bool) bool {
	var over []byte // what the headers overwrite; empty before the first packet
	if l.guest != nil {
		end := i * b.Size
		over = b.B[max(0, end-bth.MaxNetHeader):end]
	}
	var before [bth.MaxNetHeader]byte
	n := copy(before[:], over)
	f := l.overlapper.Frame(b, i)
	packet := min(b.Size, len(b.B)-i*b.Size)
	l.runHeader = append(l.runHeader[:0], f[:len(f)-packet]...)
	ok := l.accept(f)
	if ok && n > 0 {
		h := &l.pkt.NetHeader
		*h = l.netHeader[:copy(l.netHeader[:], *h)]
	}
	copy(over, before[:n])
	return ok && l.handlePacket(now, next)
}

// handleParts handles packets of a run from number i on, of which the engine has handled the one
// before, as long as they are middle packets of its message. It returns their number. Their headers
// are those of that packet, so that only the ICRC must be checked.
func (l *Loop) handleParts(now qp.Time, b *driver.Buf, i int) (n int, next bool) {
	if l.tracer != nil || !l.eng.ExpectsRun(&l.pkt) {
		return 0, true
	}
	h := l.runHeader
	id := binary.BigEndian.Uint16(h[idOffset:])
	for ; (i+1)*b.Size <= len(b.B); i++ {
		f := b.B[i*b.Size-len(h):][:len(h)+b.Size]
		ok := l.checkPart(f, h, id+uint16(n+1))
		if !ok {
			l.ctr.Drops[frame.ReasonICRC]++
		} else if packet := f[len(h) : len(f)-bth.ICRCLen]; l.eng.HandlePart(now, packet) {
			l.coalesce.count(bth.BTH(packet).AckReq(), true)
		} else {
			break
		}
		n++
		l.ctr.RxFrames++
		l.ctr.RxBytes += uint64(len(f))
		if !ok {
			return n, false
		}
	}
	return n, true
}

// Headers before the BTH over IPv4, without a VLAN tag.
const (
	lenIPv4Headers = 42
	idOffset       = 18 // of the identification
)

// checkPart reports whether the ICRC of a frame is right that lacks the headers h, over IPv4 with
// the identification id.
func (l *Loop) checkPart(f, h []byte, id uint16) bool {
	var before [bth.MaxNetHeader]byte
	if l.guest != nil {
		copy(before[:], f[:len(h)])
	}
	copy(f, h)
	if len(h) == lenIPv4Headers {
		binary.BigEndian.PutUint16(f[idOffset:], id)
	}
	ok := l.dec.ICRCOK(f, len(h))
	if l.guest != nil {
		copy(f, before[:len(h)])
	}
	return ok
}
