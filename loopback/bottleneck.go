package loopback

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/wire"
)

// ErrBottleneck means that a Bottleneck has a value out of range.
var ErrBottleneck = errors.New("loopback: invalid bottleneck")

// Bottleneck is the output of the link's switch to one Port, in virtual time. All frames to the
// Port share its bandwidth and its queue. A frame arrives at the queue after the bandwidth, delay
// and faults of its direction's Plan, and is received when the Bottleneck has sent its last bit.
type Bottleneck struct {
	Bandwidth int64 // bits per second, counting whole frames

	// Queue limits the bytes in the queue, including the frame being sent. A frame that exceeds it
	// is dropped (tail drop).
	Queue int

	// A frame with an ECT codepoint is marked CE (RFC 3168) with a probability that depends on the
	// bytes in the queue when it arrives: 0 up to MarkMin, rising linearly to MarkChance at
	// MarkMax, 1 above MarkMax. If MarkMin equals MarkMax, that is a threshold. MarkMax 0 means no
	// marks.
	MarkMin, MarkMax int
	MarkChance       float64
}

// BottleneckStats is what a Bottleneck did.
type BottleneckStats struct {
	Frames  uint64 // frames that entered the queue
	Bytes   uint64 // their bytes
	Dropped uint64 // frames that did not fit into the queue
	Marked  uint64 // frames that were marked CE
	Waiting int    // bytes in the queue now
	Longest int    // largest number of bytes in the queue
}

// Validate returns an error that wraps ErrBottleneck if a value is out of range.
func (b *Bottleneck) Validate() error {
	switch {
	case b.Bandwidth <= 0:
		return fmt.Errorf("%w: Bandwidth is %d, want bits per second", ErrBottleneck, b.Bandwidth)
	case b.Queue <= 0:
		return fmt.Errorf("%w: Queue is %d, want bytes", ErrBottleneck, b.Queue)
	case b.MarkMin < 0 || b.MarkMax < b.MarkMin:
		return fmt.Errorf("%w: MarkMin %d and MarkMax %d, want 0 <= MarkMin <= MarkMax",
			ErrBottleneck, b.MarkMin, b.MarkMax)
	case !(b.MarkChance >= 0 && b.MarkChance <= 1):
		return fmt.Errorf("%w: MarkChance is %v, want a probability from 0 to 1", ErrBottleneck,
			b.MarkChance)
	}
	return nil
}

// egress is the state of a Bottleneck. Frames on their way to the queue are in Port.delayed.
type egress struct {
	Bottleneck
	queue []arrival // frames in the queue; due is when they have been sent
	head  int       // the first of them
	out   wire.Output
	rng   rand.PCG
	stats BottleneckStats
}

// SetBottleneck limits the frames to a Port. The link must be in virtual time, and no frames may be
// in flight to the Port.
func (l *Link) SetBottleneck(to int, b Bottleneck) error {
	if !l.virtual {
		return fmt.Errorf("%w: a bottleneck requires virtual time", ErrConfig)
	}
	if err := b.Validate(); err != nil {
		return err
	}
	// The random stream differs from those of the directions, which are numbered from 1.
	l.ports[to].egress = &egress{Bottleneck: b, out: wire.Output{Rate: b.Bandwidth},
		rng: *rand.NewPCG(l.seed, uint64(MaxPorts*MaxPorts+to)+1)}
	return nil
}

// Bottleneck returns the state of a Port's Bottleneck, or zeros if it has none.
func (l *Link) Bottleneck(to int) BottleneckStats {
	p := l.ports[to]
	if p.egress == nil {
		return BottleneckStats{}
	}
	p.enqueue(p.drain())
	s := p.egress.stats
	s.Waiting = p.egress.waiting(l.now)
	return s
}

// receiveQueued is Receive behind a Bottleneck.
func (p *Port) receiveQueued(bufs []driver.Buf) (n int) {
	now := p.drain()
	p.enqueue(now)
	e := p.egress
	for n < len(bufs) && e.head < len(e.queue) && e.queue[e.head].due <= now {
		bufs[n] = p.deliver(&e.queue[e.head])
		e.head++
		n++
	}
	if 2*e.head >= len(e.queue) { // amortized O(1)
		e.queue = e.queue[:copy(e.queue, e.queue[e.head:])]
		e.head = 0
	}
	return n
}

// enqueue passes the frames that have arrived at the switch into the queue, in order of arrival.
func (p *Port) enqueue(now int64) {
	e := p.egress
	for due, ok := p.delayed.next(); ok && due <= now; due, ok = p.delayed.next() {
		a := p.delayed.pop()
		if !e.admit(&a, p.link.ports[a.from].bytes(a.buf)[:a.n]) {
			p.giveBack(&a)
		}
	}
}

// giveBack returns the buffer of a dropped frame to its sender.
func (p *Port) giveBack(a *arrival) {
	d := p.in[a.from]
	d.from.transition(a.buf, bufWire, bufBack)
	d.back.stage(a.buf)
	d.back.publish()
}

// nextQueued returns when the next frame leaves the queue. While the queue is empty, that is the
// frame that arrives next.
func (p *Port) nextQueued() (int64, bool) {
	p.drain()
	e := p.egress
	if e.head < len(e.queue) {
		return e.queue[e.head].due, true
	}
	if p.delayed.len() == 0 {
		return 0, false
	}
	first := &p.delayed.heap[0]
	return max(e.out.Busy, first.due) + e.out.Duration(int(first.n)), true
}

// admit queues the frame that arrived at a.due, and may mark it. It returns false if the queue is
// full.
func (e *egress) admit(a *arrival, frame []byte) bool {
	waiting := e.waiting(a.due)
	if waiting+len(frame) > e.Queue {
		e.stats.Dropped++
		return false
	}
	if e.marks(waiting) && markCE(frame) {
		e.stats.Marked++
	}
	a.due = e.out.Send(a.due, len(frame))
	e.queue = append(e.queue, *a)
	e.stats.Frames++
	e.stats.Bytes += uint64(len(frame))
	e.stats.Longest = max(e.stats.Longest, waiting+len(frame))
	return true
}

// waiting returns the bytes that the queue has not sent yet.
func (e *egress) waiting(now int64) int {
	left := max(0, e.out.Busy-now)
	return int(float64(left) * float64(e.Bandwidth) / 8e9)
}

// marks decides whether to mark a frame that finds this many bytes in the queue.
func (e *egress) marks(waiting int) bool {
	switch {
	case e.MarkMax == 0 || waiting <= e.MarkMin:
		return false
	case waiting > e.MarkMax:
		return true
	}
	p := e.MarkChance * float64(waiting-e.MarkMin) / float64(e.MarkMax-e.MarkMin)
	return float64(e.rng.Uint64()>>11)/(1<<53) < p
}

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd

	lenIPv4 = 20 // bytes
	ce      = 3  // the ECN codepoint CE (RFC 3168, section 5)
)

// markCE sets the ECN codepoint CE in an IP packet with ECT(0) or ECT(1). It reports whether it
// did.
func markCE(f []byte) bool {
	tag := tagLen(f)
	at := headerLen + tag
	if len(f) < at+lenIPv4 {
		return false
	}
	switch binary.BigEndian.Uint16(f[12+tag:]) {
	case etherTypeIPv4:
		return markIPv4(f[at:])
	case etherTypeIPv6:
		return markIPv6(f[at:])
	}
	return false
}

func markIPv4(h []byte) bool {
	ecn := h[1] & ce
	if ecn == 0 {
		return false
	}
	// RFC 1624, equation 3: the checksum changes by the difference of the 16-bit word.
	was := binary.BigEndian.Uint16(h)
	h[1] |= ce
	sum := uint32(^binary.BigEndian.Uint16(h[10:])) + uint32(^was) +
		uint32(binary.BigEndian.Uint16(h))
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return ecn != ce
}

// markIPv6 marks an IPv6 header, whose traffic class is in bits 4 to 11.
func markIPv6(h []byte) bool {
	ecn := h[1] >> 4 & ce
	if ecn == 0 {
		return false
	}
	h[1] |= ce << 4
	return ecn != ce
}
