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
	// bareBatch is how many frames go to the port at once; more gain nothing (the kernel sends some 32 a call).
	bareBatch = 32
	// Headers of an RC WRITE in IPv4: what its frames have on top of the payload.
	etherHeader = 14 + 20 + 8
	rethLen     = 16
	hopLimit    = 64
)

// errLost: a round trip came to nothing.
var errLost = errors.New("no answer for a second: something else on this machine takes all its time, or the peer has died")

const patience = time.Second

// bare sends frames as long as gorxe's, on the same port code, without any protocol: the yardstick.
type bare struct {
	spec *spec
	port driver.Port
	addr netip.Addr

	frame []byte // a whole frame; what is sent is a copy
	at    int    // of its serial number
	out   []byte // where the receiver copies payloads to, a message at a time; nil: nowhere
	done  int    // of out
	one   [1]driver.Buf
}

// frameSize is what a packet of gorxe's occupies: an only packet with RETH for small messages, a middle one
// for those of many packets.
func (s *spec) frameSize() int {
	if s.Size > int(s.MTU) {
		return etherHeader + bth.HeaderLen + int(s.MTU) + bth.ICRCLen
	}
	return etherHeader + bth.HeaderLen + rethLen + s.Size + bth.ICRCLen
}

// payload is how many bytes of a message one frame stands for.
func (s *spec) payload() int { return min(s.Size, int(s.MTU)) }

func newBare(s *spec, port driver.Port) (*bare, error) {
	net, ok := port.(driver.Network)
	if !ok {
		return nil, errors.New("the port does not know its addresses")
	}
	addr, err := ipv4Of(net.Addrs())
	return &bare{spec: s, port: port, addr: addr}, err
}

func ipv4Of(list []netip.Prefix) (netip.Addr, error) {
	for _, p := range list {
		if p.Addr().Is4() {
			return p.Addr(), nil
		}
	}
	return netip.Addr{}, errors.New("the interface has no IPv4 address")
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
		return b.echo(h)
	case b.spec.Active:
		return b.pour(h)
	}
	return b.count(h)
}

func (b *bare) build(peer *hello) {
	size := b.spec.frameSize()
	if size > b.port.Info().MaxFrame {
		size = b.port.Info().MaxFrame
	}
	var header [bth.MaxNetHeader]byte
	n := frame.PutHeaders(header[:], &frame.Address{
		SrcMAC: b.port.Info().MAC, DstMAC: peer.MAC, Src: bth.GIDFromAddr(b.addr), Dst: bth.GIDFromAddr(peer.Addr),
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

// write makes a frame in a transmit buffer.
func (b *bare) write(buf *driver.Buf, serial uint64) {
	buf.B = buf.B[:copy(buf.B, b.frame)]
	binary.LittleEndian.PutUint64(buf.B[b.at:], serial)
}

// pour sends as fast as it goes. The receiver counts.
func (b *bare) pour(h *halt) (outcome, error) {
	var bufs [bareBatch]driver.Buf
	serial := uint64(0)
	for end := time.Now().Add(b.spec.Warmup + b.spec.Duration); time.Now().Before(end) && !h.now(); {
		n := b.port.Alloc(bufs[:])
		for i := range bufs[:n] {
			b.write(&bufs[i], serial)
			serial++
		}
		if _, err := b.port.Send(bufs[:n]); err != nil {
			return outcome{}, fmt.Errorf("send bare frames: %w", err)
		}
	}
	return outcome{}, nil
}

// count receives until it is told to stop and nothing is left.
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
		if h.now() {
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

// deliver copies a frame's payload out, if that is asked for.
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

// ping sends a frame and waits for its answer, again and again.
func (b *bare) ping(h *halt) (outcome, error) {
	t := newTrips(b.spec)
	for serial := uint64(1); ; serial++ {
		if err := b.send(serial); err != nil {
			return outcome{}, err
		}
		for got := uint64(0); got != serial; {
			var err error
			if got, err = b.await(h, t.last.Add(patience)); err != nil {
				return outcome{}, err
			}
			if got == stopped {
				return t.outcome(), nil
			}
		}
		if t.done() {
			return t.outcome(), nil
		}
	}
}

// echo answers every frame with one of the same serial number.
func (b *bare) echo(h *halt) (outcome, error) {
	for {
		serial, err := b.await(h, time.Time{})
		if err != nil || serial == stopped {
			return outcome{}, err
		}
		if err := b.send(serial); err != nil {
			return outcome{}, err
		}
	}
}

func (b *bare) send(serial uint64) error {
	for b.port.Alloc(b.one[:]) == 0 {
		// The kernel gives the buffers back in time.
	}
	b.write(&b.one[0], serial)
	if _, err := b.port.Send(b.one[:]); err != nil {
		return fmt.Errorf("send a bare frame: %w", err)
	}
	return nil
}

// stopped is no serial number: it says that it is time to end.
const stopped = 0

// await returns the serial number of the next frame.
func (b *bare) await(h *halt, deadline time.Time) (uint64, error) {
	for turns := 1; ; turns++ {
		if b.port.Receive(b.one[:]) == 1 {
			serial := uint64(0)
			if len(b.one[0].B) == len(b.frame) {
				serial = binary.LittleEndian.Uint64(b.one[0].B[b.at:])
			}
			b.port.Release(b.one[:])
			if serial != stopped {
				return serial, nil
			}
			continue
		}
		if b.spec.Spin && turns%lookEvery != 0 {
			continue
		}
		if h.now() {
			return stopped, nil
		}
		if !deadline.IsZero() && time.Now().After(deadline) {
			return stopped, errLost
		}
		if b.spec.Spin {
			continue
		}
		if err := b.port.Wait(napTime); err != nil {
			return stopped, fmt.Errorf("wait for a bare frame: %w", err)
		}
	}
}
