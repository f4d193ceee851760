package udpmsg

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

// socket opens a UDP socket on a loopback address.
func socket(t *testing.T, a netip.Addr, port int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	for _, o := range []struct{ level, name, value int }{
		{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE},
		{unix.IPPROTO_IP, unix.IP_TTL, DefaultHopLimit},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.name, o.value); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: a.As4()}); err != nil {
		t.Fatal(err)
	}
	return fd
}

// await waits until a socket has a packet.
func await(fd int) { _, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000) }

// packets builds RC packets with the PSNs from psn on. They are too long to be copied.
func packets(e *frame.Encoder, a *frame.Address, op bth.Opcode, psn bth.PSN, n int) [][]byte {
	list := make([][]byte, n)
	for i := range list {
		b := make([]byte, 512)
		at := frame.PutHeaders(b, a)
		bth.PutBTH(b[at:], &bth.BTHFields{Opcode: op, PKey: bth.DefaultPKey, DestQP: 7,
			PSN: psn.Add(uint32(i))})
		b = b[:at+bth.HeaderLen+maxShort+bth.ICRCLen]
		e.Finish(b, at)
		list[i] = b
	}
	return list
}

// sealed gives an IPv4 frame another identification.
func sealed(b []byte, id uint16) []byte {
	(&frame.Encoder{ID: id}).Finish(b, LenV4)
	return b
}

// A run that the kernel refuses is sent packet by packet, with correct ICRCs, and later packets to
// the peer are sent alone.
func TestRefusedRun(t *testing.T) {
	for _, adjacent := range []bool{false, true} {
		t.Run(fmt.Sprintf("adjacent %v", adjacent), func(t *testing.T) {
			testRefusedRun(t, adjacent)
		})
	}
}

func testRefusedRun(t *testing.T, adjacent bool) {
	from, to := netip.MustParseAddr("127.73.1.1"), netip.MustParseAddr("127.73.1.2")
	out, in := socket(t, from, 0), socket(t, to, bth.Port)
	if err := unix.SetsockoptInt(out, unix.SOL_SOCKET, unix.SO_NO_CHECK, 1); err != nil {
		t.Fatal(err)
	}
	port, err := unix.Getsockname(out)
	if err != nil {
		t.Fatal(err)
	}
	s := NewSender()
	var notes []string
	s.Note = func(n string) { notes = append(notes, n) }
	s.Refused = func(err error) { t.Errorf("Refused(%v)", err) }
	k := Socket{FD: out, Port: uint16(port.(*unix.SockaddrInet4).Port), Runs: true}
	// The frames have other source ports and identifications, as on an AF_XDP port.
	e := &frame.Encoder{ID: 500}
	a := &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), HopLimit: 64,
		SrcPort: 0xc123}
	const n = 20
	d, pkt := new(frame.Decoder), new(bth.Packet)
	for round := range 2 {
		calls := s.Stats.Kicks
		memory := make([]byte, 0, n*512)
		for i, b := range packets(e, a, bth.RCSendOnly, bth.PSN(round*n), n) {
			if adjacent && i > 0 {
				at := len(memory)
				memory = append(memory, sealed(b, 0)[LenV4:]...)
				s.Join(memory[at:], len(memory)-at)
				continue
			}
			s.Add(k, b, LenV4)
		}
		s.Flush()
		if calls = s.Stats.Kicks - calls; round == 1 && calls > 2 {
			t.Errorf("%d system calls for single packets, want 1 or 2", calls)
		}
		for i := range n {
			b := make([]byte, 2048)
			sent := *a
			sent.SrcPort = k.Port
			at := frame.PutHeaders(b, &sent)
			length, err := unix.Read(in, b[at:])
			if err != nil {
				t.Fatalf("round %d, packet %d: %v", round, i, err)
			}
			// Write headers with identification 0 without changing the ICRC.
			icrc := [4]byte(b[at+length-4:])
			new(frame.Encoder).Finish(b[:at+length], at)
			copy(b[at+length-4:], icrc[:])
			if r := d.Decode(b[:at+length], pkt); r != frame.ReasonOK ||
				pkt.BTH.PSN() != bth.PSN(round*n+i) {
				t.Fatalf("round %d, packet %d: Decode() = %v, PSN %v", round, i, r, pkt.BTH.PSN())
			}
		}
	}
	if s.Stats.TxFrames != 2*n || s.Stats.TxDropped != 0 {
		t.Errorf("TxFrames = %d, TxDropped = %d, want %d, 0", s.Stats.TxFrames, s.Stats.TxDropped,
			2*n)
	}
	if len(notes) != 1 || !strings.Contains(notes[0], to.String()) {
		t.Errorf("notes are %q, want one about %v", notes, to)
	}
}

// simulate passes rounds of packets for a peer through a Sender and retransmits those that lost
// selects by whether the packet was in a run. It returns the number of packets in runs.
func simulate(s *Sender, p *peer, rounds int, lost func(inRun bool) bool) (runs int) {
	e := new(frame.Encoder)
	a := &frame.Address{Src: bth.GIDFromAddr(netip.MustParseAddr("192.0.2.1")), Dst: p.gid,
		HopLimit: 64}
	psn := bth.PSN(1<<24 - 100)
	for range rounds {
		list := packets(e, a, bth.RCWriteMiddle, psn, 32)
		var again [][]byte
		joined := 0
		for _, b := range list {
			in := s.fits(p, b[LenV4:])
			if in {
				s.joined(p, b[LenV4:])
				joined++
			}
			if lost(in) {
				again = append(again, b)
			}
		}
		for _, b := range again {
			s.fits(p, b[LenV4:])
		}
		psn = psn.Add(32)
		runs += joined
	}
	return runs
}

func TestPeers(t *testing.T) {
	gid := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	for _, c := range []struct {
		name   string
		lost   func(n int, inRun bool) bool
		lo, hi int // packets in runs, of 32,000; pauses end while the test runs
	}{
		{"no loss", func(int, bool) bool { return false }, 32_000, 32_000},
		{"all packets in runs are lost", func(_ int, in bool) bool { return in }, 32, 320},
		{"all but the first of a run are lost",
			func(n int, in bool) bool { return in && n%32 != 0 }, 32, 320},
		{"one packet of 100 is lost", func(n int, _ bool) bool { return n%100 == 99 }, 31_000, 32_000},
	} {
		s := NewSender()
		p, n := s.find(&gid), -1
		got := simulate(s, p, 1000, func(in bool) bool { n++; return c.lost(n, in) })
		if got < c.lo || got > c.hi {
			t.Errorf("%s: %d packets in runs, want %d to %d", c.name, got, c.lo, c.hi)
		}
	}
}

// A peer that loses runs gets single packets for pauses that become longer. If runs arrive again,
// it gets runs for good.
func TestPauses(t *testing.T) {
	gid := bth.GIDFromAddr(netip.MustParseAddr("192.0.2.2"))
	s := NewSender()
	notes := 0
	s.Note = func(string) { notes++ }
	p := s.find(&gid)
	udp := packets(new(frame.Encoder), &frame.Address{Src: gid, Dst: gid}, bth.UDSendOnly, 1,
		1)[0][LenV4:]
	for i, want := range []time.Duration{1, 2, 4, 8} {
		before := time.Now()
		simulate(s, p, 1, func(in bool) bool { return in })
		if got := p.resume.Sub(before); got < want*shortPause || !p.off {
			t.Errorf("pause %d lasts %v, want %v", i, got, want*shortPause)
		}
		p.resume = time.Now()
	}
	if notes != 1 {
		t.Errorf("%d notes, want 1", notes)
	}
	if s.fits(p, udp) {
		t.Error("a datagram may be in a run although no run is known to have arrived")
	}
	simulate(s, p, maxCredit/32, func(bool) bool { return false })
	if !s.fits(p, udp) || p.pause != shortPause {
		t.Errorf("runs have arrived: the next pause is %v, want %v", p.pause, shortPause)
	}
}

// The number of known peers is limited, and one IPv6 subnet cannot displace the others.
func TestPeerLimits(t *testing.T) {
	s := NewSender()
	gid := func(format string, i int) *bth.GID {
		g := bth.GIDFromAddr(netip.MustParseAddr(fmt.Sprintf(format, i>>8&0xff, i&0xff)))
		return &g
	}
	first := s.find(gid("192.0.%d.%d", 2))
	for i := range 3 * maxPeers {
		s.find(gid("2001:db8:0:1::%x:%x", i))
	}
	if n := len(s.known); n != maxSubnet+1 || s.find(&first.gid) != first {
		t.Errorf("%d peers are known, want %d with the first one", n, maxSubnet+1)
	}
	for i := range 3 * maxPeers {
		s.find(gid("10.9.%d.%d", i%(1<<16)))
		s.find(gid("2001:db8:%x:%x::1", i))
		if n := len(s.known); n > maxPeers {
			t.Fatalf("%d peers are known, want at most %d", n, maxPeers)
		}
	}
	in := 0
	for _, list := range s.subnets {
		for _, p := range list {
			if in++; s.known[p.gid] != p {
				t.Fatalf("%v is in a subnet, but not known", p.addr())
			}
		}
	}
	for g := range s.known {
		if g.IsIPv4() {
			in++
		}
	}
	if in != len(s.known) {
		t.Errorf("%d peers are in subnets or have IPv4 addresses, want %d", in, len(s.known))
	}
}

func TestFlushDoesNotAllocate(t *testing.T) {
	from, to := netip.MustParseAddr("127.73.2.1"), netip.MustParseAddr("127.73.2.2")
	out, in := socket(t, from, 0), socket(t, to, bth.Port)
	s := NewSender()
	a := &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), HopLimit: 64}
	list := packets(new(frame.Encoder), a, bth.RCSendOnly, 0, 8)
	b := make([]byte, 2048)
	if n := testing.AllocsPerRun(50, func() {
		for _, b := range list {
			s.Add(Socket{FD: out, Runs: true}, b, LenV4)
		}
		s.Flush()
		for range list {
			_, _ = unix.Read(in, b)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// With KeepRefused all frames from the first refused one on are left to the caller.
func TestKeepRefused(t *testing.T) {
	from, to := netip.MustParseAddr("127.73.4.1"), netip.MustParseAddr("127.73.4.2")
	socket(t, to, bth.Port)
	s := NewSender()
	s.KeepRefused = true
	var refused []error
	s.Refused = func(err error) { refused = append(refused, err) }
	a := &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), HopLimit: 64}
	list := packets(new(frame.Encoder), a, bth.RCSendOnly, 0, 1)
	k := Socket{FD: socket(t, from, 0)}
	add := func(n int) {
		for range n {
			s.Add(k, list[0], LenV4)
		}
		s.Flush()
	}
	if add(3); s.Unsent() != 0 || s.Stats.TxFrames != 3 {
		t.Fatalf("%d frames were sent, want 3", s.Stats.TxFrames)
	}
	k.FD = -1
	if add(3 * Size); len(refused) != 1 || refused[0] != unix.EBADF {
		t.Errorf("Refused was called with %v, want once with %v", refused, unix.EBADF)
	}
	if n := s.Unsent(); n != 3*Size {
		t.Errorf("Unsent() = %d, want %d", n, 3*Size)
	}
	if n := s.Unsent(); n != 0 || s.Stats.TxDropped != 0 || s.Stats.TxFrames != 3 {
		t.Errorf("Unsent() = %d, Stats = %+v, want 3 sent frames and nothing else", n, s.Stats)
	}
}

// A run does not contain packets to QPNs with different top bytes.
func TestRunsHaveOneSlot(t *testing.T) {
	from, to := netip.MustParseAddr("127.73.2.1"), netip.MustParseAddr("127.73.2.2")
	out, in := socket(t, from, 0), socket(t, to, bth.Port)
	if err := unix.SetsockoptInt(in, unix.SOL_UDP, unix.UDP_GRO, 1); err != nil {
		t.Fatal(err)
	}
	e := new(frame.Encoder)
	a := &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), HopLimit: 64}
	s := NewSender()
	k := Socket{FD: out, Runs: true}
	slots := []byte{0, 0, 0, 1, 1, 0, 2, 2, 2, 2}
	for i, b := range packets(e, a, bth.RCSendOnly, 0, len(slots)) {
		b[LenV4+5] = slots[i]
		s.Add(k, b, LenV4)
	}
	s.Flush()
	length := bth.HeaderLen + maxShort + bth.ICRCLen
	for _, want := range []struct{ slot, packets int }{{0, 3}, {1, 2}, {0, 1}, {2, 4}} {
		b := make([]byte, 4096)
		await(in)
		n, err := unix.Read(in, b)
		if err != nil || n != want.packets*length {
			t.Fatalf("Read() = %d, %v, want %d packets of %d bytes", n, err, want.packets, length)
		}
		for ; n > 0; n -= length {
			if got := int(b[n-length+5]); got != want.slot {
				t.Errorf("a run of slot %d has a packet of slot %d", want.slot, got)
			}
		}
	}
}

// The socket gets the traffic class of the packets, and packets with other classes keep theirs.
func TestClass(t *testing.T) {
	from, to := netip.MustParseAddr("127.73.3.1"), netip.MustParseAddr("127.73.3.2")
	out, in := socket(t, from, bth.Port), socket(t, to, bth.Port)
	if err := unix.SetsockoptInt(in, unix.IPPROTO_IP, unix.IP_RECVTOS, 1); err != nil {
		t.Fatal(err)
	}
	s, b, buf := NewSender(), NewBatch(), make([]byte, 512)
	s.Refused = func(err error) { t.Errorf("Refused(%v)", err) }
	k := Socket{FD: out, Port: bth.Port, Class: NewClass(out, false)}
	e := &frame.Encoder{SourcePort: bth.Port}
	a := &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to), HopLimit: 64}
	b.SetMemory(0, 0, buf)
	send := func(classes ...uint8) {
		t.Helper()
		for _, c := range classes {
			a.TrafficClass = c
			s.Add(k, packets(e, a, bth.RCSendOnly, 0, 1)[0], LenV4)
		}
		s.Flush()
		for i, want := range classes {
			await(in)
			n, err := b.Receive(in, 1, true)
			if err != nil {
				t.Fatal(err)
			}
			if got := b.Ancillary(n - 1).TrafficClass; got != want {
				t.Fatalf("packet %d: traffic class = %d, want %d", i, got, want)
			}
		}
	}
	socketClass := func(want int) {
		t.Helper()
		got, err := unix.GetsockoptInt(out, unix.IPPROTO_IP, unix.IP_TOS)
		if err != nil || got != want {
			t.Fatalf("traffic class of the socket = %d, %v, want %d", got, err, want)
		}
	}
	for range changeAfter {
		send(2, 0) // the class of the socket in between
	}
	socketClass(0)
	for range changeAfter {
		send(2)
	}
	socketClass(2)
	send(2, 0, 5, 2) // none of them has the class of another one
	for range changeAfter {
		send(5, 7) // several others
	}
	socketClass(2)
	send(slices.Repeat([]uint8{0}, changeAfter)...) // all in one call
	socketClass(0)
	send(0, 2)
	if n := testing.AllocsPerRun(10, func() {
		for range changeAfter {
			k.Class.covers(3)
		}
		k.Class.follow()
		for range changeAfter {
			k.Class.covers(4)
		}
		k.Class.follow()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
