package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
)

const (
	// bareBatch is the number of frames per call of the port. More do not help: the kernel sends
	// about 32 per system call.
	bareBatch = 32
	// Headers of an RC WRITE over IPv4.
	netHeader = 14 + 20 + 8
	rethLen   = 16
	hopLimit  = 64
)

// bare sends frames as long as gorxe's on the same port code, without a protocol.
type bare struct {
	spec *spec
	port driver.Port
	addr netip.Addr

	frame []byte // every sent frame is a copy of it
	at    int    // offset of the serial number in it
	out   []byte // where the receiver copies payloads to, a message at a time; nil: no copy
	done  int    // bytes in out
	one   [1]driver.Buf
}

// frameSize returns the size of a packet of gorxe: an only packet with RETH for small messages, a
// middle packet for others.
func (s *spec) frameSize() int {
	if s.Size > int(s.MTU) {
		return netHeader + bth.HeaderLen + int(s.MTU) + bth.ICRCLen
	}
	return netHeader + bth.HeaderLen + rethLen + s.Size + bth.ICRCLen
}

// payload returns the number of message bytes in a frame.
func (s *spec) payload() int { return min(s.Size, int(s.MTU)) }

func newBare(s *spec, port driver.Port) (*bare, error) {
	net, ok := driver.Find[driver.Network](port)
	if !ok {
		return nil, errors.New("the port does not know its addresses")
	}
	for _, p := range net.Addrs() {
		if p.Addr().Is4() {
			return &bare{spec: s, port: port, addr: p.Addr()}, nil
		}
	}
	return nil, errors.New("the interface has no IPv4 address")
}

func (b *bare) hello() hello {
	info := b.port.Info()
	return hello{Addr: b.addr, MAC: info.MAC, Datapath: info.Datapath}
}

func (b *bare) close() error { return b.port.Close() }

func (b *bare) run(peer *hello, ready func(), h *halt) (outcome, error) {
	b.build(peer)
	ready()
	switch {
	case b.spec.Test == pingpong && b.spec.Active:
		return b.ping(h)
	case b.spec.Test == pingpong:
		return outcome{}, b.echo(h)
	case b.spec.Active:
		return outcome{}, b.send(h)
	}
	return b.count(h)
}

// build builds the frame.
func (b *bare) build(peer *hello) {
	info := b.port.Info()
	size := min(b.spec.frameSize(), info.MaxFrame)
	var header [bth.MaxNetHeader]byte
	n := frame.PutHeaders(header[:], &frame.Address{
		SrcMAC: info.MAC, DstMAC: peer.MAC, Src: bth.GIDFromAddr(b.addr),
		Dst:     bth.GIDFromAddr(peer.Addr),
		SrcPort: frame.SourcePort(1, 1), HopLimit: hopLimit,
	})
	b.frame = make([]byte, size)
	copy(b.frame, header[:n])
	b.at = size - bth.ICRCLen - wordSize
	if b.spec.Kind == kindCopy {
		b.out = make([]byte, b.spec.Size)
	}
	var e frame.Encoder
	e.Finish(b.frame, n) // lengths and the IP checksum
}

// write writes a frame into a transmit buffer.
func (b *bare) write(buf *driver.Buf, serial uint64) {
	buf.B = buf.B[:copy(buf.B, b.frame)]
	binary.LittleEndian.PutUint64(buf.B[b.at:], serial)
}

// send sends as fast as possible. The receiver counts.
func (b *bare) send(h *halt) error {
	var bufs [bareBatch]driver.Buf
	serial := uint64(0)
	return drive(b.spec, h, func() error {
		n := b.port.Alloc(bufs[:])
		for i := range bufs[:n] {
			b.write(&bufs[i], serial)
			serial++
		}
		if _, err := b.port.Send(bufs[:n]); err != nil {
			return fmt.Errorf("send bare frames: %w", err)
		}
		return nil
	})
}

// count receives until halt is set and nothing is left.
func (b *bare) count(h *halt) (outcome, error) {
	var bufs [bareBatch]driver.Buf
	w := window{warmup: b.spec.Warmup}
	var idle time.Time
	for {
		n := b.port.Receive(bufs[:])
		now := time.Now()
		if n > 0 {
			for i := range bufs[:n] {
				b.deliver(bufs[i].B)
			}
			b.port.Release(bufs[:n])
			w.add(now, uint64(n))
			idle = now
			continue
		}
		if h.isSet() {
			return w.outcome(), nil
		}
		if now.Sub(idle) >= idleSpin {
			if err := b.port.Wait(napTime); err != nil {
				return outcome{}, fmt.Errorf("wait for bare frames: %w", err)
			}
			idle = time.Now()
		}
	}
}

// deliver copies the payload of a frame if the lane copies.
func (b *bare) deliver(f []byte) {
	n := b.spec.payload()
	if b.out == nil || len(f) != len(b.frame) {
		return
	}
	if b.done+n > len(b.out) {
		b.done = 0
	}
	b.done += copy(b.out[b.done:], f[len(f)-bth.ICRCLen-n:len(f)-bth.ICRCLen])
}

// ping sends a frame and waits for the reply, again and again.
func (b *bare) ping(h *halt) (outcome, error) {
	t := newTrips(b.spec)
	for serial := uint64(1); ; serial++ {
		if err := b.sendOne(serial); err != nil {
			return outcome{}, err
		}
		for got := uint64(0); got != serial; {
			var err error
			if got, err = b.await(h, t.last.Add(replyTimeout)); err != nil {
				return outcome{}, err
			}
			if got == halted {
				return t.outcome(), nil
			}
		}
		if t.done() {
			return t.outcome(), nil
		}
	}
}

// echo answers every frame with one of the same serial number.
func (b *bare) echo(h *halt) error {
	for {
		serial, err := b.await(h, time.Time{})
		if err != nil || serial == halted {
			return err
		}
		if err := b.sendOne(serial); err != nil {
			return err
		}
	}
}

func (b *bare) sendOne(serial uint64) error {
	for b.port.Alloc(b.one[:]) == 0 {
		// The kernel returns the buffers soon.
	}
	b.write(&b.one[0], serial)
	if _, err := b.port.Send(b.one[:]); err != nil {
		return fmt.Errorf("send a bare frame: %w", err)
	}
	return nil
}

// halted is not a serial number: await returns it when halt is set.
const halted = 0

// await returns the serial number of the next frame. The zero deadline means none.
func (b *bare) await(h *halt, deadline time.Time) (uint64, error) {
	for polls := 1; ; polls++ {
		if b.port.Receive(b.one[:]) == 1 {
			serial := uint64(0)
			if len(b.one[0].B) == len(b.frame) {
				serial = binary.LittleEndian.Uint64(b.one[0].B[b.at:])
			}
			b.port.Release(b.one[:])
			if serial != 0 {
				return serial, nil
			}
			continue
		}
		if b.spec.Spin && polls%haltEvery != 0 {
			continue
		}
		if h.isSet() {
			return halted, nil
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			return halted, errLost
		}
		if b.spec.Spin {
			continue
		}
		if err := b.port.Wait(napTime); err != nil {
			return halted, fmt.Errorf("wait for a bare frame: %w", err)
		}
	}
}
