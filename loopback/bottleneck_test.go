package loopback

import (
	"encoding/binary"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// ipFrame writes an IP packet of version 4 or 6 with the given ECN bits into b.
func ipFrame(b []byte, from, to *Port, n, version int, ecn byte) []byte {
	b = fill(b, from.Info().MAC, to.Info().MAC, n, 0)
	h := b[headerLen:]
	clear(h[:40])
	if version == 4 {
		binary.BigEndian.PutUint16(b[12:], 0x0800)
		h[0], h[1], h[8] = 0x45, 0xa8|ecn, 64
		binary.BigEndian.PutUint16(h[10:], ^onesSum(h[:20]))
	} else {
		binary.BigEndian.PutUint16(b[12:], 0x86dd)
		h[0], h[1] = 0x6a, 0x80|ecn<<4
	}
	return b
}

// onesSum returns the ones' complement sum of the 16-bit words of b (RFC 1071).
func onesSum(b []byte) uint16 {
	sum := uint32(0)
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}

func sendIP(t *testing.T, from, to *Port, n, version int, ecn byte) {
	t.Helper()
	var buf [1]driver.Buf
	if from.Alloc(buf[:]) == 0 {
		t.Fatal("no send buffer")
	}
	buf[0].B = ipFrame(buf[0].B, from, to, n, version, ecn)
	if k, err := from.Send(buf[:]); k != 1 || err != nil {
		t.Fatalf("Send() = %d, %v", k, err)
	}
}

// Two senders share the bandwidth and the queue.
func TestBottleneckIsShared(t *testing.T) {
	l := newLink(t, Config{Ports: 3, Virtual: true})
	const size, queue = 1000, 20_000
	if err := l.SetBottleneck(2, Bottleneck{Bandwidth: 8e9, Queue: queue}); err != nil {
		t.Fatal(err)
	}
	start := l.Now()
	for range 30 {
		sendIP(t, l.Port(0), l.Port(2), size, 4, 0)
		sendIP(t, l.Port(1), l.Port(2), size, 4, 0)
	}
	s := l.Bottleneck(2)
	if s.Frames != queue/size || s.Dropped != 60-queue/size || s.Longest != queue ||
		s.Waiting != queue {
		t.Errorf("Bottleneck() = %+v, want %d frames", s, queue/size)
	}
	var bufs [1]driver.Buf
	for i := range queue / size {
		next, ok := l.NextEvent()
		if want := start + int64(i+1)*1000; !ok || next != want { // 1000 bytes at 1 byte per ns
			t.Fatalf("frame %d: NextEvent() = %d ns, want %d ns", i, next-start, want-start)
		}
		l.AdvanceTo(next)
		if l.Port(2).Receive(bufs[:]) != 1 {
			t.Fatalf("frame %d: Receive() = 0, want 1", i)
		}
		l.Port(2).Release(bufs[:])
	}
	sendIP(t, l.Port(2), l.Port(0), size, 4, 0)
	if l.Port(0).Receive(bufs[:]) != 1 {
		t.Error("no frame in the other direction, which has no bottleneck")
	}
	l.Port(0).Release(bufs[:])
}

// Only ECN-capable packets are marked, and an IPv4 header keeps a correct checksum.
func TestBottleneckMarks(t *testing.T) {
	for _, version := range []int{4, 6} {
		for ecn := range byte(4) {
			l := newLink(t, Config{Virtual: true})
			b := Bottleneck{Bandwidth: 1e9, Queue: 1e6, MarkMin: 500, MarkMax: 500, MarkChance: 1}
			if err := l.SetBottleneck(1, b); err != nil {
				t.Fatal(err)
			}
			sendIP(t, l.Port(0), l.Port(1), 1000, version, ecn)
			sendIP(t, l.Port(0), l.Port(1), 1000, version, ecn)
			l.Advance(time.Second)
			var bufs [2]driver.Buf
			if l.Port(1).Receive(bufs[:]) != 2 {
				t.Fatal("a frame was lost, want 2 frames")
			}
			second := ecn
			if ecn != 0 {
				second = 3
			}
			for i, want := range []byte{ecn, second} {
				h := bufs[i].B[headerLen:]
				got := h[1] & 3
				if version == 6 {
					got = h[1] >> 4 & 3
				}
				if got != want || (version == 4 && onesSum(h[:20]) != 0xffff) {
					t.Errorf("IPv%d, ECN %d, frame %d: got ECN %d and checksum %#x, want ECN %d",
						version, ecn, i, got, onesSum(h[:20]), want)
				}
			}
			marked := uint64(0)
			if ecn == 1 || ecn == 2 {
				marked = 1
			}
			if s := l.Bottleneck(1); s.Marked != marked {
				t.Errorf("IPv%d, ECN %d: Marked = %d, want %d", version, ecn, s.Marked, marked)
			}
			l.Port(1).Release(bufs[:])
		}
	}
}

// A frame that is not IP is not marked, nor is one whose IP header is behind a VLAN tag missed.
func TestBottleneckMarksIPOnly(t *testing.T) {
	ip := make([]byte, 100)
	ip[headerLen], ip[headerLen+1] = 0x45, 2
	tagged := make([]byte, 100)
	binary.BigEndian.PutUint16(tagged[12:], 0x8100)
	binary.BigEndian.PutUint16(tagged[16:], 0x0800)
	tagged[18], tagged[19] = 0x45, 2
	for _, c := range []struct {
		frame []byte
		proto uint16 // EtherType at byte 12
		want  bool
	}{{ip, 0x0800, true}, {ip, 0x88b5, false}, {ip[:33], 0x0800, false}, {tagged, 0x8100, true},
		{tagged[:37], 0x8100, false}} {
		f := append([]byte(nil), c.frame...)
		binary.BigEndian.PutUint16(f[12:], c.proto)
		if got := markCE(f); got != c.want {
			t.Errorf("markCE(%#x, %d bytes) = %v, want %v", c.proto, len(f), got, c.want)
		}
	}
}

// Between MarkMin and MarkMax the probability rises linearly.
func TestBottleneckMarkChance(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Queue: 4096, TxBufs: 1024})
	b := Bottleneck{Bandwidth: 1e9, Queue: 4e6, MarkMax: 4e6, MarkChance: 0.5}
	if err := l.SetBottleneck(1, b); err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		sendIP(t, l.Port(0), l.Port(1), 1000, 4, 2)
	}
	s := l.Bottleneck(1) // the mean probability is 1/4
	if got := float64(s.Marked) / float64(s.Frames); s.Frames != 4000 || math.Abs(got-0.25) > 0.03 {
		t.Errorf("%d of %d frames marked, want a quarter of 4000", s.Marked, s.Frames)
	}
}

// Frames reach the queue in the order of their arrival at the switch, whatever the order in which
// they were sent. A frame that does not fit is dropped, and its buffer returns to the sender.
func TestBottleneckOrder(t *testing.T) {
	l := newLink(t, Config{Ports: 3, Virtual: true, TxBufs: 1, Queue: 4})
	if err := l.SetBottleneck(2, Bottleneck{Bandwidth: 8e9, Queue: 2000}); err != nil {
		t.Fatal(err)
	}
	if err := l.SetPlan(0, 2, Plan{Delay: 10 * time.Microsecond}); err != nil {
		t.Fatal(err)
	}
	start := l.Now()
	far, near := l.Port(0), l.Port(1)
	for range 3 {
		sendIP(t, far, l.Port(2), 1000, 4, 0) // arrives after 10 us, leaves after 11 us
	}
	sendIP(t, near, l.Port(2), 500, 4, 0) // leaves after 0.5 us
	var bufs [4]driver.Buf
	for i, want := range []struct {
		at int64
		n  int
	}{{500, 500}, {11_000, 1000}, {12_000, 1000}} {
		next, ok := l.NextEvent()
		if !ok || next-start != want.at {
			t.Fatalf("frame %d: NextEvent() = %d ns, want %d ns", i, next-start, want.at)
		}
		l.AdvanceTo(next)
		if n := l.Port(2).Receive(bufs[:]); n != 1 || len(bufs[0].B) != want.n {
			t.Fatalf("frame %d: Receive() = %d, %d bytes, want 1 frame of %d bytes", i, n,
				len(bufs[0].B), want.n)
		}
		l.Port(2).Release(bufs[:1])
	}
	if s := l.Bottleneck(2); s.Dropped != 1 || s.Frames != 3 {
		t.Errorf("Bottleneck() = %+v, want 3 frames and 1 dropped", s)
	}
	if _, ok := l.NextEvent(); ok {
		t.Error("NextEvent() has an event, want none")
	}
	for range 4 { // the limit of frames in flight: all buffers are back
		sendIP(t, far, l.Port(2), 100, 4, 0)
	}
	if f := l.Faults(0, 2); f.Overflow != 0 {
		t.Errorf("%d frames exceed the limit of frames in flight, want 0", f.Overflow)
	}
}

func TestBottleneckIsChecked(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	for _, b := range []Bottleneck{
		{}, {Bandwidth: 1}, {Bandwidth: -1, Queue: 1}, {Bandwidth: 1, Queue: 1, MarkMin: 2, MarkMax: 1},
		{Bandwidth: 1, Queue: 1, MarkMin: -1},
		{Bandwidth: 1, Queue: 1, MarkChance: math.NaN()}, {Bandwidth: 1, Queue: 1, MarkChance: 2},
	} {
		if err := l.SetBottleneck(0, b); !errors.Is(err, ErrBottleneck) {
			t.Errorf("SetBottleneck(%+v) = %v, want ErrBottleneck", b, err)
		}
	}
	real := newLink(t, Config{})
	if err := real.SetBottleneck(0, Bottleneck{Bandwidth: 1, Queue: 1}); !errors.Is(err, ErrConfig) {
		t.Errorf("SetBottleneck in real time = %v, want ErrConfig", err)
	}
	if s := real.Bottleneck(0); s != (BottleneckStats{}) {
		t.Errorf("Bottleneck() without a bottleneck = %+v, want zeros", s)
	}
}
