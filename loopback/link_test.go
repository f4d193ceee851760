package loopback

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
)

var (
	_ driver.Port    = (*Port)(nil)
	_ driver.Network = (*Port)(nil)
)

func newLink(t testing.TB, c Config) *Link {
	t.Helper()
	l, err := NewLink(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// fill writes a numbered frame of n bytes.
func fill(b []byte, from, to bth.MAC, n int, number uint64) []byte {
	b = b[:n]
	copy(b, to[:])
	copy(b[6:], from[:])
	binary.BigEndian.PutUint16(b[12:], 0x88b5) // IEEE 802 local experimental EtherType
	for i := headerLen; i < n; i++ {
		b[i] = byte(number) + byte(i)
	}
	for i := headerLen; i <= 30 && i+8 <= n; i += 8 {
		binary.BigEndian.PutUint64(b[i:], number)
	}
	return b
}

// send sends count numbered frames of n bytes and returns how many Send reported as sent.
func send(t testing.TB, from, to driver.Port, n, count int, first uint64) int {
	t.Helper()
	sent := 0
	var buf [1]driver.Buf
	for i := range count {
		if from.Alloc(buf[:]) == 0 {
			t.Fatalf("no send buffer for frame %d", i)
		}
		buf[0].B = fill(buf[0].B, from.Info().MAC, to.Info().MAC, n, first+uint64(i))
		k, err := from.Send(buf[:])
		if err != nil {
			t.Fatal(err)
		}
		sent += k
	}
	return sent
}

// receive takes all frames that have arrived and returns their numbers.
func receive(t testing.TB, p driver.Port) (numbers []uint64) {
	t.Helper()
	var bufs [7]driver.Buf
	for {
		n := p.Receive(bufs[:])
		if n == 0 {
			return numbers
		}
		for i := range n {
			numbers = append(numbers, binary.BigEndian.Uint64(bufs[i].B[headerLen:]))
		}
		p.Release(bufs[:n])
	}
}

func TestPerfectLink(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	a, b := l.Port(0), l.Port(1)
	if n := send(t, a, b, 100, 50, 1); n != 50 {
		t.Fatalf("sent %d frames", n)
	}
	got := receive(t, b)
	for i, n := range got {
		if n != uint64(i+1) {
			t.Fatalf("received frame %d as number %d", n, i+1)
		}
	}
	if len(got) != 50 || len(receive(t, a)) != 0 {
		t.Fatalf("received %d of 50 frames", len(got))
	}
	if s := a.Stats(); s.TxFrames != 50 || s.TxBytes != 5000 || s.TxDropped != 0 {
		t.Errorf("sender's Stats() = %+v", s)
	}
	if s := b.Stats(); s.RxFrames != 50 || s.RxBytes != 5000 || s.RxDropped != 0 {
		t.Errorf("receiver's Stats() = %+v", s)
	}
}

// Frames that are longer than the MTU or shorter than a header, or sent to a Port that is down, are
// dropped.
func TestRefusedFrames(t *testing.T) {
	l := newLink(t, Config{Virtual: true, MTU: 1000, TxBufs: 1})
	a, b := l.Port(0), l.Port(1)
	for _, c := range []struct {
		name string
		prep func()
		edit func([]byte) []byte
		sent int
		come int
	}{
		{"largest", nil, func(b []byte) []byte { return b[:1014] }, 1, 1},
		{"one byte more", nil, func(b []byte) []byte { return b[:1015] }, 0, 0},
		{"largest with a VLAN tag", nil, func(b []byte) []byte {
			binary.BigEndian.PutUint16(b[12:], 0x8100)
			return b[:1018]
		}, 1, 1},
		{"half a header", nil, func(b []byte) []byte { return b[:13] }, 0, 0},
		{"unknown address", nil, func(b []byte) []byte { b[5] = 99; return b[:60] }, 1, 0},
		{"its own address", nil, func(b []byte) []byte { b[5] = 1; return b[:60] }, 1, 0},
		{"smaller MTU", func() { _ = a.SetMTU(500) }, func(b []byte) []byte { return b[:515] }, 0,
			0},
		{"down", func() { a.SetUp(false) }, func(b []byte) []byte { return b[:60] }, 0, 0},
		{"peer down", func() { a.SetUp(true); b.SetUp(false) },
			func(b []byte) []byte { return b[:60] }, 1, 0},
		{"up again", func() { b.SetUp(true) }, func(b []byte) []byte { return b[:60] }, 1, 1},
		{"peer closed", func() { _ = b.Close() }, func(b []byte) []byte { return b[:60] }, 1, 0},
	} {
		if c.prep != nil {
			c.prep()
		}
		var buf [1]driver.Buf
		if a.Alloc(buf[:]) != 1 {
			t.Fatalf("%s: the only buffer was not returned", c.name)
		}
		fill(buf[0].B, a.mac, b.mac, 60, 7)
		buf[0].B = c.edit(buf[0].B)
		if n, err := a.Send(buf[:]); n != c.sent || err != nil {
			t.Errorf("%s: Send() = %d, %v; want %d", c.name, n, err, c.sent)
		}
		if got := receive(t, b); len(got) != c.come {
			t.Errorf("%s: received %d frames, want %d", c.name, len(got), c.come)
		}
	}
}

// A switch copies frames with a group address to all other ports.
func TestMulticast(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Ports: 4})
	var buf [1]driver.Buf
	p := l.Port(2)
	p.Alloc(buf[:])
	fill(buf[0].B, p.mac, bth.MAC{0x33, 0x33, 0, 0, 0, 1}, 60, 5)
	buf[0].B = buf[0].B[:60]
	if n, err := p.Send(buf[:]); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for i := range 4 {
		want := 1
		if i == 2 {
			want = 0
		}
		if got := receive(t, l.Port(i)); len(got) != want {
			t.Errorf("port %d received %d frames, want %d", i, len(got), want)
		}
	}
}

// Frames that exceed the queue are dropped and counted at the receiver. Buffers that it releases
// make space again.
func TestQueueBound(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Queue: 10, TxBufs: 3})
	a, b := l.Port(0), l.Port(1)
	if n := send(t, a, b, 60, 25, 1); n != 25 {
		t.Fatalf("sent %d of 25 frames", n)
	}
	if s := b.Stats(); s.RxDropped != 15 {
		t.Errorf("RxDropped = %d, want 15", s.RxDropped)
	}
	if f := l.Faults(0, 1); f.Frames != 25 || f.Overflow != 15 {
		t.Errorf("Faults() = %+v", f)
	}
	var held [10]driver.Buf
	if n := b.Receive(held[:]); n != 10 {
		t.Fatalf("received %d frames", n)
	}
	send(t, a, b, 60, 1, 100)
	if got := receive(t, b); len(got) != 0 {
		t.Error("received a frame although the receiver holds all buffers")
	}
	b.Release(held[3:4])
	b.Release(held[:1])
	send(t, a, b, 60, 3, 200)
	if got := receive(t, b); len(got) != 2 || got[0] != 200 || got[1] != 201 {
		t.Errorf("received %v after two releases", got)
	}
}

func TestBufferMisusePanics(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	a, b := l.Port(0), l.Port(1)
	var buf [1]driver.Buf
	mustPanic := func(name string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", name)
			}
		}()
		f()
	}
	a.Alloc(buf[:])
	a.Free(buf[:])
	mustPanic("freed twice", func() { a.Free(buf[:]) })
	mustPanic("sent after free", func() { _, _ = a.Send(buf[:]) })
	send(t, a, b, 60, 1, 1)
	b.Receive(buf[:])
	b.Release(buf[:])
	mustPanic("released twice", func() { b.Release(buf[:]) })
}

func TestPoison(t *testing.T) {
	l := newLink(t, Config{Virtual: true, Poison: true})
	a, b := l.Port(0), l.Port(1)
	send(t, a, b, 60, 1, 1)
	var buf [1]driver.Buf
	b.Receive(buf[:])
	b.Release(buf[:])
	if !bytes.Equal(buf[0].B, bytes.Repeat([]byte{poison}, 60)) {
		t.Error("a released frame is not overwritten")
	}
}

func TestNetwork(t *testing.T) {
	l := newLink(t, Config{Ports: 3})
	a, b := l.Port(0), l.Port(1)
	addr := netip.MustParseAddr
	got := a.Addrs()
	if s := fmt.Sprint(got); s != "[fe80::aff:fe4d:1/64 10.77.0.1/24 fd77::1/64]" {
		t.Errorf("Addrs() = %v", s)
	}
	ctx := context.Background()
	for _, c := range []struct{ src, dst, want string }{
		{"", "10.77.0.2", "10.77.0.1"},
		{"", "::ffff:10.77.0.2", "10.77.0.1"},
		{"", "fd77::2", "fd77::1"},
		{"", b.Addrs()[0].Addr().String(), got[0].Addr().String()},
		{"fd77::1", "fd77::2", "fd77::1"},
	} {
		var src netip.Addr
		if c.src != "" {
			src = addr(c.src)
		}
		h, err := a.Resolve(ctx, src, addr(c.dst))
		if err != nil || h.MAC != b.Info().MAC || h.Src != addr(c.want) || h.MTU != DefaultMTU ||
			h.VLAN != 0 {
			t.Errorf("Resolve(%s, %s) = %+v, %v", c.src, c.dst, h, err)
		}
	}
	if h, err := a.Resolve(ctx, netip.Addr{}, addr("224.1.2.3")); err != nil ||
		h.MAC != (bth.MAC{1, 0, 0x5e, 1, 2, 3}) {
		t.Errorf("Resolve of a multicast address = %v, %v", h, err)
	}
	if h, err := a.Resolve(ctx, netip.Addr{}, addr("ff02::1:2")); err != nil ||
		h.MAC != (bth.MAC{0x33, 0x33, 0, 1, 0, 2}) || h.Src != got[0].Addr() {
		t.Errorf("Resolve of an IPv6 multicast address = %v, %v", h, err)
	}
	for _, c := range []struct{ src, dst string }{{"", "10.77.0.9"}, {"", "10.77.0.1"},
		{"10.77.0.2", "10.77.0.3"}} {
		src, _ := netip.ParseAddr(c.src)
		if _, err := a.Resolve(ctx, src, addr(c.dst)); !errors.Is(err, ErrNoRoute) {
			t.Errorf("Resolve(%s, %s) = %v", c.src, c.dst, err)
		}
	}
}

func TestChanged(t *testing.T) {
	l := newLink(t, Config{})
	p := l.Port(0)
	for name, f := range map[string]func(){
		"MTU":       func() { _ = p.SetMTU(1500); _ = p.SetMTU(1400) },
		"link":      func() { p.SetUp(false) },
		"addresses": func() { p.SetAddrs(netip.MustParsePrefix("192.0.2.1/24")) },
	} {
		f()
		select {
		case <-p.Changed():
		default:
			t.Errorf("%s: Changed did not report it", name)
		}
	}
	if i := p.Info(); i.MTU != 1400 || i.Up || i.Datapath != "memory" || len(p.Addrs()) != 1 {
		t.Errorf("Info() = %+v", i)
	}
	if err := p.SetMTU(DefaultMTU + 1); !errors.Is(err, ErrConfig) {
		t.Errorf("SetMTU above Config.MTU = %v", err)
	}
}

func TestClosed(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	a, b := l.Port(0), l.Port(1)
	send(t, b, a, 60, 1, 1)
	var bufs [2]driver.Buf
	a.Alloc(bufs[:])
	for range 2 {
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := a.Send(bufs[:]); n != 0 || !errors.Is(err, ErrClosed) ||
		!errors.Is(err, net.ErrClosed) {
		t.Errorf("Send() = %d, %v", n, err)
	}
	if a.held != 0 {
		t.Error("Send did not return the buffers")
	}
	if a.Alloc(bufs[:]) != 0 || a.Receive(bufs[:]) != 0 || a.Info().Up {
		t.Error("Alloc or Receive of a closed port returned buffers")
	}
	if err := a.Wait(time.Hour); !errors.Is(err, ErrClosed) {
		t.Errorf("Wait() = %v", err)
	}
}

func TestBadConfig(t *testing.T) {
	for _, c := range []Config{
		{Ports: 1}, {Ports: MaxPorts + 1}, {MTU: 60}, {MTU: MaxMTU + 1}, {Queue: -1},
		{TxBufs: maxQueue + 1},
		{Virtual: true, Clock: func() int64 { return 0 }},
	} {
		if _, err := NewLink(c); !errors.Is(err, ErrConfig) {
			t.Errorf("NewLink(%+v) = %v", c, err)
		}
	}
	nan := 0.0
	for _, p := range []Plan{{Loss: 1.1}, {Corrupt: -0.1}, {Reorder: nan / nan}, {Delay: -1},
		{PauseEvery: 1}} {
		if _, err := NewLink(Config{Plan: p}); !errors.Is(err, ErrPlan) {
			t.Errorf("Validate of %+v = %v", p, err)
		}
	}
}

// JoinGroup and LeaveGroup change the Port's groups.
func TestGroups(t *testing.T) {
	link, err := NewLink(Config{})
	if err != nil {
		t.Fatal(err)
	}
	var _ driver.Groups = link.Port(0)
	group := netip.MustParseAddr("ff0e::1")
	for _, c := range []struct {
		name string
		f    func(netip.Addr) error
		a    netip.Addr
		want error
	}{
		{"leave before", link.Port(0).LeaveGroup, group, ErrConfig},
		{"join what is no group", link.Port(0).JoinGroup, netip.MustParseAddr("10.77.0.2"),
			ErrConfig},
		{"join", link.Port(0).JoinGroup, group, nil},
		{"join again", link.Port(0).JoinGroup, group, ErrConfig},
		{"leave", link.Port(0).LeaveGroup, group, nil},
		{"leave again", link.Port(0).LeaveGroup, group, ErrConfig},
	} {
		if err := c.f(c.a); !errors.Is(err, c.want) {
			t.Errorf("%s: error is %v", c.name, err)
		}
	}
	if n := len(link.Port(0).Groups()); n != 0 {
		t.Errorf("joined %d groups", n)
	}
}

// In a star, Port 0 and the others reach each other, and the others do not reach each other.
func TestStar(t *testing.T) {
	l := newLink(t, Config{Ports: 4, Virtual: true, Star: true, Queue: 8, TxBufs: 1})
	for from := range 4 {
		for to := range 4 {
			want := 1
			if from == to || from != 0 && to != 0 {
				want = 0
			}
			send(t, l.Port(from), l.Port(to), 100, 1, 7)
			if got := len(receive(t, l.Port(to))); got != want {
				t.Errorf("from port %d to port %d: %d frames, want %d", from, to, got, want)
			}
		}
	}
}

// Each direction of the largest link has its own random numbers.
func TestStreamsDiffer(t *testing.T) {
	seen := map[int]bool{MaxPorts * MaxPorts: true} // the first stream of a bottleneck
	for from := range MaxPorts {
		for to := range MaxPorts {
			s := streamOf(from, to)
			if seen[s] || s < 0 || s > MaxPorts*MaxPorts {
				t.Fatalf("streamOf(%d, %d) = %d, want an unused number below %d", from, to, s,
					MaxPorts*MaxPorts)
			}
			seen[s] = true
		}
	}
	if a, b := streamOf(0, 1), streamOf(1, 0); a != 1 || b != 16 {
		t.Errorf("streamOf(0, 1), streamOf(1, 0) = %d, %d, want 1, 16", a, b)
	}
}

// Without a trace, everything but TraceHash is the same. NextEventAt tells the ports apart.
func TestNoTrace(t *testing.T) {
	for _, off := range []bool{false, true} {
		l := newLink(t, Config{Ports: 3, Virtual: true, NoTrace: off, Plan: Plan{Delay: 1000}})
		start := l.Now()
		send(t, l.Port(0), l.Port(2), 100, 2, 0)
		if _, ok := l.NextEventAt(1); ok {
			t.Error("NextEventAt(1) has an event, want none")
		}
		if at, ok := l.NextEventAt(2); !ok || at != start+1000 {
			t.Errorf("NextEventAt(2) = %d, %v, want %d, true", at-start, ok, 1000)
		}
		l.Advance(1000)
		if n := len(receive(t, l.Port(2))); n != 2 {
			t.Errorf("%d frames, want 2", n)
		}
		if (l.TraceHash() == 0) != off {
			t.Errorf("NoTrace %v: TraceHash() = %#x", off, l.TraceHash())
		}
	}
}
