package udpmsg

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

// queued describes what a Sender would send, and what it has recorded.
func queued(s *Sender, to bth.GID) string {
	text := ""
	for i := range s.queued {
		for k := range s.out.packets(i) {
			text += fmt.Sprintf("%x\n", s.out.packet(i, k))
		}
		text += "--\n"
	}
	r, p := s.run, s.known[to]
	return text + fmt.Sprint(r.packets, r.bytes, r.closed, p.credit, p.used, p.proven, s.flows)
}

// Next adds the frames that Add would add to the same run, and refuses others.
func TestNext(t *testing.T) {
	a := frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), HopLimit: 64,
		Dst: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2")), SrcPort: 0xc123}
	v6 := a
	v6.Src = bth.GIDFromAddr(netip.MustParseAddr("2001:db8::1"))
	v6.Dst = bth.GIDFromAddr(netip.MustParseAddr("2001:db8::2"))
	local := a
	local.Dst = bth.GIDFromAddr(netip.MustParseAddr("127.0.0.2"))
	encode := func(f func(*frame.Address, *bth.BTHFields, *int), a frame.Address) []byte {
		h := bth.BTHFields{Opcode: bth.RCWriteMiddle, PKey: bth.DefaultPKey, DestQP: 7, PSN: 5}
		n := 1024
		if f != nil {
			f(&a, &h, &n)
		}
		b := make([]byte, 2048)
		at := frame.PutHeaders(b, &a)
		bth.PutBTH(b[at:], &h)
		b = b[:at+bth.HeaderLen+n+bth.ICRCLen]
		(&frame.Encoder{ID: 500}).Finish(b, at)
		return b
	}
	for _, c := range []struct {
		name string
		a    frame.Address
		edit func(*frame.Address, *bth.BTHFields, *int)
		next bool
	}{
		{"the next packet", a, nil, true},
		{"the next packet, IPv6", v6, nil, true},
		{"the next packet on the same host", local, nil, true},
		{"AckReq", a, func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.AckReq = true }, true},
		{"the last packet", a,
			func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.Opcode = bth.RCWriteLast }, false},
		{"a shorter packet", a, func(_ *frame.Address, _ *bth.BTHFields, n *int) { *n = 1020 }, false},
		{"a longer packet", a, func(_ *frame.Address, _ *bth.BTHFields, n *int) { *n = 1028 }, false},
		{"a gap", a, func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.PSN++ }, false},
		{"the same packet again", a,
			func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.PSN-- }, false},
		{"another QP", a, func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.DestQP++ }, false},
		{"another partition", a,
			func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.PKey = 0x8001 }, false},
		{"another destination", a, func(a *frame.Address, _ *bth.BTHFields, _ *int) {
			a.Dst = bth.GIDFromAddr(netip.MustParseAddr("192.0.2.3"))
		}, false},
		{"another source", v6, func(a *frame.Address, _ *bth.BTHFields, _ *int) {
			a.Src = bth.GIDFromAddr(netip.MustParseAddr("2001:db8::3"))
		}, false},
		{"another traffic class", a,
			func(a *frame.Address, _ *bth.BTHFields, _ *int) { a.TrafficClass = 8 }, false},
		{"another hop limit", v6,
			func(a *frame.Address, _ *bth.BTHFields, _ *int) { a.HopLimit = 1 }, false},
		{"IPv6 after IPv4", a, func(a *frame.Address, _ *bth.BTHFields, n *int) {
			*a = v6
			*n -= LenV6 - LenV4
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			frames := [][]byte{
				encode(func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.PSN -= 2 }, c.a),
				encode(func(_ *frame.Address, h *bth.BTHFields, _ *int) { h.PSN-- }, c.a),
				encode(c.edit, c.a),
			}
			var text [2]string
			for i := range text {
				s := NewSender()
				k := Socket{Port: 0xc001, Runs: true}
				if s.Next(frames[0]) {
					t.Fatal("Next() = true for the first frame, want false")
				}
				for j, f := range frames {
					f = slices.Clone(f)
					next := i == 1 && s.Next(f)
					if !next {
						s.Add(k, f, headersLen(f))
					}
					if want := i == 1 && j == 2 && c.next; next != want {
						t.Errorf("Next() = %v for frame %d, want %v", next, j, want)
					}
				}
				text[i] = queued(s, c.a.Dst)
			}
			if text[0] != text[1] {
				t.Errorf("with Next:\n%.2000s\nwithout:\n%.2000s", text[1], text[0])
			}
		})
	}
}

// Join adds the packets that Add would add, to the same runs, however many at a time. Adjacent
// packets are one part of a message.
func TestJoin(t *testing.T) {
	to := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	a := &frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), Dst: to,
		HopLimit: 64, SrcPort: 0xc123}
	k := Socket{Port: 0xc001, Runs: true}
	const n = 2 * MaxRun
	var frames [][]byte
	for _, b := range packets(new(frame.Encoder), a, bth.RCWriteMiddle, 1<<24-5, n) {
		if i := len(frames); i == 10 || i == 20 || i == 21 || i > n-8 { // runs end
			b = b[:len(b)-16]
		}
		frames = append(frames, sealed(b, 0))
	}
	added := NewSender()
	for _, b := range frames {
		added.Add(k, slices.Clone(b), LenV4)
	}
	want := queued(added, to)
	for _, most := range []int{1, 2, 7, n} {
		joined := NewSender()
		joined.Add(k, slices.Clone(frames[0]), LenV4)
		memory := make([]byte, 0, n*512)
		for rest := frames[1:]; len(rest) > 0; {
			at, size, count := len(memory), len(rest[0])-LenV4, 0
			for ; count < min(most, len(rest)) && len(rest[count])-LenV4 == size; count++ {
				memory = append(memory, sealed(rest[count], uint16(count))[LenV4:]...)
			}
			joined.Join(memory[at:], size)
			rest = rest[count:]
		}
		if got := queued(joined, to); got != want {
			t.Errorf("with Join for %d packets:\n%.2000s\nwithout:\n%.2000s", most, got, want)
		}
		for i, want := range []int{2, 1} {
			if got := int(joined.out.headers[i].hdr.Iovlen); got != want {
				t.Errorf("message %d has %d parts, want %d", i, got, want)
			}
		}
	}
}

// Short packets become one part of a message, as far as there is space for copies, and do not
// change.
func TestShortPackets(t *testing.T) {
	to := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	a := &frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), Dst: to,
		HopLimit: 64, SrcPort: 0xc123}
	const size, copies = 200, Size * maxShort / 200
	frames := packets(new(frame.Encoder), a, bth.RCWriteMiddle, 10, 2*MaxRun)
	text := [2]string{}
	for i, want := range [][2]int{{2, 2 + 2*(MaxRun-1) - copies}, {MaxRun, MaxRun}} {
		s := NewSender()
		if i == 1 {
			s.out.short = nil
		}
		for _, f := range frames {
			b := sealed(slices.Clone(f[:LenV4+size]), 0)
			if !s.Next(b) {
				s.Add(Socket{Port: 0xc001, Runs: true}, b, LenV4)
			}
		}
		h := &s.out.headers
		if got := [2]int{int(h[0].hdr.Iovlen), int(h[1].hdr.Iovlen)}; got != want {
			t.Errorf("two runs have %d parts, want %d", got, want)
		}
		text[i] = queued(s, to)
	}
	if text[0] != text[1] {
		t.Errorf("with copies:\n%.2000s\nwithout:\n%.2000s", text[0], text[1])
	}
}

// The packets of a run have the source port of the frame before them, also if that frame continues
// a message of another QP.
func TestJoinOfAnotherQP(t *testing.T) {
	to := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	a := &frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), Dst: to,
		HopLimit: 64, SrcPort: 0xc123}
	b := *a
	b.SrcPort = 0xc456
	k := Socket{Port: 0xc001, Runs: true}
	e := new(frame.Encoder)
	other := packets(e, a, bth.RCWriteMiddle, 10, 3)
	own := packets(e, &b, bth.RCWriteMiddle, 500, 2*MaxRun)
	for _, before := range []int{1, 3} {
		added, joined := NewSender(), NewSender()
		for _, f := range append(slices.Clone(other[:before]), own...) {
			added.Add(k, sealed(slices.Clone(f), 0), LenV4)
		}
		for _, f := range append(slices.Clone(other[:before]), own[0]) {
			joined.Add(k, sealed(slices.Clone(f), 0), LenV4)
		}
		var run []byte
		for i, f := range own[1:] {
			run = append(run, sealed(slices.Clone(f), uint16(i))[LenV4:]...)
		}
		joined.Join(run, len(own[0])-LenV4)
		if got, want := queued(joined, to), queued(added, to); got != want {
			t.Errorf("after %d packets of another QP, with Join:\n%.2000s\nwithout:\n%.2000s", before,
				got, want)
		}
	}
}

// If the kernel refuses a message, its peer gets no runs for a while, and others still do.
func TestKeepStopsPeer(t *testing.T) {
	s := NewSender()
	s.KeepRefused = true
	a := frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), HopLimit: 64}
	var frames [2][]byte
	for i := range frames {
		a.Dst = bth.GIDFromIPv4([4]byte{192, 0, 2, byte(2 + i)})
		frames[i] = packets(new(frame.Encoder), &a, bth.RCWriteMiddle, 0, 1)[0]
		s.Add(Socket{Runs: true}, frames[i], LenV4)
	}
	s.keep(0, 2, unix.EPERM)
	for i, want := range []bool{true, false} {
		if got := s.Pauses(frames[i], LenV4); got != want {
			t.Errorf("peer %d: Pauses() = %v, want %v", i, got, want)
		}
	}
}

// Adjacent packets are one part of a message only if they are in one allocation, as far as their
// slices tell.
func TestAdjacent(t *testing.T) {
	const n = 512
	memory := make([]byte, 3*n)
	b := NewBatch()
	for _, c := range []struct {
		first, second []byte
		parts         int
	}{
		{memory[:n], memory[n:], 1},
		{memory[:n:n], memory[n:], 2},
		{memory[:n], memory[n+1:], 2},
		{memory[n:], memory[:n], 2},
	} {
		b.begin(0, c.first)
		b.add(0, c.second, 1)
		if got := int(b.headers[0].hdr.Iovlen); got != c.parts {
			t.Errorf("%d parts, want %d", got, c.parts)
		}
	}
}

func headersLen(b []byte) int {
	if b[12] == 0x08 {
		return LenV4
	}
	return LenV6
}
