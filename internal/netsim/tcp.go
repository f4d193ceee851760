package netsim

import (
	"encoding/binary"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// TCP describes a TCP CUBIC flow, which always has data to send. It is a model at the level of
// segments: window (RFC 9438), selective acknowledgments, retransmission timeout (RFC 6298) and
// delayed acknowledgments, but no handshake, flow control or ECN. Its frames have the lengths of
// real ones with timestamps.
type TCP struct {
	MSS int // payload of a segment, bytes; 0 means 1448
}

// Limits and defaults of TCP.
const (
	defaultMSS = 1448
	minMSS     = 536
	// maxSegments limits the window. It is a power of 2.
	maxSegments = 1 << 16
)

func (t *TCP) mss() int {
	if t.MSS == 0 {
		return defaultMSS
	}
	return t.MSS
}

// Lengths and offsets in frames. Sequence numbers count segments, from 0.
const (
	lenEthernet = 14
	tcpHeaders  = lenEthernet + 20 + 32 // with the timestamp option
	blockLen    = 8
	maxBlocks   = 3 // with the timestamp option

	atType  = 12
	atKind  = lenEthernet
	atCount = lenEthernet + 1  // blocks of an acknowledgment
	atSeq   = lenEthernet + 4  // of the segment; of an acknowledgment, the next expected
	atTime  = lenEthernet + 8  // when it was sent; of an acknowledgment, the echo
	atBlock = lenEthernet + 16 // pairs of first and last + 1

	// tcpType is the EtherType of the frames: IEEE 802 local experimental.
	tcpType = 0x88b5
)

// Kinds of frames.
const (
	kindData = 1
	kindAck  = 2
)

// span is a range of segments, without last.
type span struct{ first, last uint32 }

// tcpFrame is what a frame says.
type tcpFrame struct {
	kind   byte
	seq    uint32
	sent   int64
	blocks [maxBlocks]span
	count  int
}

// isTCP reports whether a frame belongs to a TCP flow.
func isTCP(b []byte) bool {
	return len(b) >= tcpHeaders && binary.BigEndian.Uint16(b[atType:]) == tcpType
}

func parseTCP(b []byte) (f tcpFrame) {
	f.kind, f.count = b[atKind], min(int(b[atCount]), maxBlocks)
	f.seq = binary.BigEndian.Uint32(b[atSeq:])
	f.sent = int64(binary.BigEndian.Uint64(b[atTime:]))
	for i := range f.count {
		at := b[atBlock+i*blockLen:]
		f.blocks[i] = span{binary.BigEndian.Uint32(at), binary.BigEndian.Uint32(at[4:])}
	}
	return f
}

// put writes the frame and returns it with payload bytes after its headers. Blocks beyond the
// headers of a real frame make it longer, as a SACK option does.
func (f *tcpFrame) put(b []byte, from, to bth.MAC, payload int) []byte {
	n := tcpHeaders + payload
	if f.count > 0 {
		n += 4 + f.count*blockLen
	}
	b = b[:n]
	copy(b, to[:])
	copy(b[6:], from[:])
	binary.BigEndian.PutUint16(b[atType:], tcpType)
	b[atKind], b[atCount] = f.kind, byte(f.count)
	binary.BigEndian.PutUint32(b[atSeq:], f.seq)
	binary.BigEndian.PutUint64(b[atTime:], uint64(f.sent))
	for i := range f.count {
		at := b[atBlock+i*blockLen:]
		binary.BigEndian.PutUint32(at, f.blocks[i].first)
		binary.BigEndian.PutUint32(at[4:], f.blocks[i].last)
	}
	return b
}

// tcpHost is the state of a Sender with TCP. It implements host.
type tcpHost struct {
	port   *loopback.Port
	link   *loopback.Link
	to     bth.MAC
	flow   tcpSender
	remote *tcpReceiver
	mss    int
	began  bool
}

func newTCPHost(t *TCP, link *loopback.Link, port int, receiver *tap) *tcpHost {
	h := &tcpHost{port: link.Port(port), link: link, to: link.Port(0).Info().MAC, mss: t.mss()}
	h.flow.init()
	h.remote = receiver.add(h.port.Info().MAC)
	return h
}

func (h *tcpHost) start() error {
	h.began = true
	return h.send()
}

// bytes returns the payload that has arrived in order.
func (h *tcpHost) bytes() []uint64 { return []uint64{h.remote.total * uint64(h.mss)} }

func (h *tcpHost) windows() []float64 { return []float64{h.flow.window} }

// progress handles acknowledgments and timeouts, and sends.
func (h *tcpHost) progress() (work int, err error) {
	var bufs [64]driver.Buf
	for n := h.port.Receive(bufs[:]); n > 0; n = h.port.Receive(bufs[:]) {
		for _, b := range bufs[:n] {
			if isTCP(b.B) {
				f := parseTCP(b.B)
				h.flow.acknowledged(h.link.Now(), &f)
			}
		}
		h.port.Release(bufs[:n])
		work += n
	}
	h.flow.checkTimeout(h.link.Now())
	if !h.began {
		return work, nil
	}
	return work, h.send()
}

func (h *tcpHost) nextTimeout() (int64, bool) { return h.flow.nextTimeout() }

// send sends what the window allows.
func (h *tcpHost) send() error {
	var bufs [1]driver.Buf
	now, mac := h.link.Now(), h.port.Info().MAC
	for h.flow.maySend() && h.port.Alloc(bufs[:]) == 1 {
		f := tcpFrame{kind: kindData, seq: h.flow.next(now), sent: now}
		bufs[0].B = f.put(bufs[0].B, mac, h.to, h.mss)
		if _, err := h.port.Send(bufs[:]); err != nil {
			return err
		}
	}
	return nil
}

// tap is the receiver's port. It takes the frames of TCP flows and passes on the others.
type tap struct {
	*loopback.Port
	link  *loopback.Link
	flows map[bth.MAC]*tcpReceiver
	order []bth.MAC // of flows
}

func newTap(link *loopback.Link) *tap {
	return &tap{Port: link.Port(0), link: link, flows: map[bth.MAC]*tcpReceiver{}}
}

// add creates the receiver of the flow from a host.
func (t *tap) add(from bth.MAC) *tcpReceiver {
	r := &tcpReceiver{}
	t.flows[from] = r
	t.order = append(t.order, from)
	return r
}

// Receive implements driver.Port.
func (t *tap) Receive(bufs []driver.Buf) int {
	for {
		n := t.Port.Receive(bufs)
		if n == 0 {
			return 0
		}
		if n = t.filter(bufs[:n]); n > 0 {
			return n
		}
	}
}

// filter handles the TCP frames in bufs, and returns how many others there are, which it moves to
// the front.
func (t *tap) filter(bufs []driver.Buf) (others int) {
	for i, b := range bufs {
		if !isTCP(b.B) {
			bufs[others], bufs[i] = bufs[i], bufs[others]
			others++
			continue
		}
		mac := bth.MAC(b.B[6:12])
		f := parseTCP(b.B)
		if r := t.flows[mac]; r != nil && r.receive(t.link.Now(), &f) {
			t.acknowledge(mac, r)
		}
	}
	t.Port.Release(bufs[others:])
	return others
}

// acknowledge sends an acknowledgment. If there is no buffer, the next one makes up for it.
func (t *tap) acknowledge(to bth.MAC, r *tcpReceiver) {
	var bufs [1]driver.Buf
	if t.Port.Alloc(bufs[:]) == 1 {
		f := r.ack()
		bufs[0].B = f.put(bufs[0].B, t.Port.Info().MAC, to, 0)
		_, _ = t.Port.Send(bufs[:]) // fails only after Close
	}
}

// progress sends delayed acknowledgments.
func (t *tap) progress() {
	now := t.link.Now()
	for _, mac := range t.order {
		if r := t.flows[mac]; r.pending > 0 && now >= r.ackAt {
			t.acknowledge(mac, r)
		}
	}
}

func (t *tap) nextTimeout() (next int64, ok bool) {
	for _, mac := range t.order {
		if r := t.flows[mac]; r.pending > 0 && (!ok || r.ackAt < next) {
			next, ok = r.ackAt, true
		}
	}
	return next, ok
}

// delayedAck is the longest delay of an acknowledgment.
const delayedAck = int64(40 * time.Millisecond)
