package udp_test

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/gorxe/gorxe/udp"
	"golang.org/x/sys/unix"
)

// Packets travel as runs, and arrive unchanged and in order.
func TestRuns(t *testing.T) {
	for _, c := range []struct {
		name string
		veth bool
		cut  bool // the kernel cuts runs before they leave
		addr func(netip.Addr) bool
	}{
		{"loopback", false, false, netip.Addr.Is4},
		{"IPv4", true, false, netip.Addr.Is4},
		{"IPv6", true, false, global6},
		{"link-local", true, false, netip.Addr.IsLinkLocalUnicast},
		{"IPv4 without offloads", true, true, netip.Addr.Is4},
	} {
		for _, overlap := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, overlap %v", c.name, overlap), func(t *testing.T) {
				testRuns(t, open(t, testbed.Config{UDP: true, Veth: c.veth, MTU: 4200,
					Offloads: !c.cut}), c.addr, c.cut, overlap)
			})
		}
	}
}

func global6(a netip.Addr) bool { return a.Is6() && !a.IsLinkLocalUnicast() }

// runPackets returns the number of packets in those buffers that are runs.
func runPackets(bufs []driver.Buf) (n int) {
	for i := range bufs {
		if bufs[i].Token&driver.NoHeaders != 0 {
			n += bufs[i].Packets()
		}
	}
	return n
}

// frames returns the frames in received buffers, each valid until the next one.
func frames(p *udp.Port, bufs []driver.Buf) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for i := range bufs {
			for k := range bufs[i].Packets() {
				f := bufs[i].B
				if bufs[i].Token&driver.NoHeaders != 0 {
					f = p.Frame(&bufs[i], k)
				}
				if !yield(f) {
					return
				}
			}
		}
	}
}

func testRuns(t *testing.T, p *testbed.Ports, is func(netip.Addr) bool, cut, overlap bool) {
	a := addrs(t, p, is)
	from, to := p.Port[0].(*udp.Port), p.Port[1].(*udp.Port)
	if overlap {
		to.OverlapHeaders()
	}
	inRuns := 0
	e := &frame.Encoder{SourcePort: bth.Port}
	d, pkt := new(frame.Decoder), new(bth.Packet)
	if cut {
		d.RecoverIDs()
	}
	random := rand.New(rand.NewPCG(21, 3))
	psn := bth.PSN(1<<24 - 500)
	for round := range 30 {
		var bufs, got [64]driver.Buf
		for range 80 * (round % 2) { // the port forgets the length of packets
			if to.Receive(got[:]) != 0 {
				t.Fatal("a packet arrives, want none")
			}
		}
		n := from.Alloc(bufs[:])
		sizes := make([]int, n)
		size := 4 * random.IntN(1025)
		path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
		for i := range bufs[:n] {
			if random.IntN(16) == 0 {
				size = 4 * random.IntN(1025)
			}
			if random.IntN(32) == 0 {
				path.TrafficClass ^= 0x20
			}
			sizes[i] = size
			bufs[i].B = packet(e, bufs[i].B, &path, psn, size)
			psn = psn.Add(1)
		}
		before := from.Stats()
		if sent, err := from.Send(bufs[:n]); sent != n || err != nil {
			t.Fatalf("Send() = %d, %v; want %d", sent, err, n)
		}
		after := from.Stats()
		if calls := after.Kicks - before.Kicks; calls > 2 ||
			after.TxFrames-before.TxFrames != uint64(n) {
			t.Errorf("round %d: %d system calls, %d frames", round, calls,
				after.TxFrames-before.TxFrames)
		}
		for have := 0; have < n; {
			k := to.Receive(got[:])
			inRuns += runPackets(got[:k])
			for f := range frames(to, got[:k]) {
				// The port sets the identification of each packet of a run.
				if r := d.Decode(f, pkt); r != frame.ReasonOK {
					t.Fatalf("round %d, packet %d of %d: Decode() = %v", round, have, n, r)
				}
				if !bytes.Equal(pkt.Payload, counting(sizes[have])) {
					t.Fatalf("round %d, packet %d: %d bytes, want %d", round, have,
						len(pkt.Payload), sizes[have])
				}
				have++
			}
			to.Release(got[:k])
			if k == 0 {
				if err := to.Wait(time.Second); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if (inRuns > 0) != (overlap && !cut) {
		t.Errorf("%d packets were received in runs", inRuns)
	}
}

// sendRuns sends packets of 64 bytes in runs of 64, with the PSNs from 0 on.
func sendRuns(t *testing.T, p driver.Port, path *frame.Address, runs int) {
	t.Helper()
	e := &frame.Encoder{SourcePort: bth.Port}
	var bufs [64]driver.Buf
	for r := range runs {
		n := p.Alloc(bufs[:])
		for i := range bufs[:n] {
			bufs[i].B = packet(e, bufs[i].B, path, bth.PSN(r*len(bufs)+i), 64)
		}
		if sent, err := p.Send(bufs[:n]); sent != len(bufs) || err != nil {
			t.Fatalf("Send() = %d, %v; want %d", sent, err, len(bufs))
		}
	}
}

// Wait does not block while there are packets of a run that did not fit in a call of Receive.
func TestWaitWithinRun(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	sendRuns(t, p.Port[0], &frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}, 1)
	const patience = 10 * time.Second
	start := time.Now()
	var bufs [8]driver.Buf
	for have := 0; have < 64; {
		if err := p.Port[1].Wait(patience); err != nil {
			t.Fatal(err)
		}
		if time.Since(start) > patience {
			t.Fatalf("%d of 64 packets received after %v", have, patience)
		}
		n := p.Port[1].Receive(bufs[:])
		p.Port[1].Release(bufs[:n])
		have += n
	}
}

// Runs to several addresses of a port at the same time do not exceed its buffers.
func TestRunsToSeveralAddresses(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		t.Run(fmt.Sprintf("overlap %v", overlap), func(t *testing.T) {
			testSeveralAddresses(t, overlap)
		})
	}
}

func testSeveralAddresses(t *testing.T, overlap bool) {
	p := open(t, testbed.Config{UDP: true, Veth: true, MTU: 4200, Offloads: true})
	const runs = 150
	want := 0
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, netip.Addr.IsLinkLocalUnicast,
		global6} {
		a := addrs(t, p, is)
		sendRuns(t, p.Port[0], &frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}, runs)
		want += runs * 64
	}
	to := p.Port[1].(*udp.Port)
	if overlap {
		to.OverlapHeaders()
	}
	var bufs [64]driver.Buf
	d, pkt, next := new(frame.Decoder), new(bth.Packet), map[bth.GID]bth.PSN{}
	for have := 0; have < want; {
		n := to.Receive(bufs[:])
		for f := range frames(to, bufs[:n]) {
			if r := d.Decode(f, pkt); r != frame.ReasonOK || pkt.BTH.PSN() != next[pkt.Dst] {
				t.Fatalf("Decode() = %v, PSN %v to %v, want %v; %+v", r, pkt.BTH.PSN(), pkt.Dst,
					next[pkt.Dst], to.Stats())
			}
			next[pkt.Dst]++
			have++
		}
		to.Release(bufs[:n])
		if d := to.Stats().RxDropped; d > 0 {
			t.Fatalf("%d packets dropped after %d of %d", d, have, want)
		}
		if n == 0 {
			if err := to.Wait(time.Second); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Runs of other programs with very short, long or many packets are dropped and counted, and packets
// after them arrive.
func TestForgedRuns(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		t.Run(fmt.Sprintf("overlap %v", overlap), func(t *testing.T) { testForgedRuns(t, overlap) })
	}
}

func testForgedRuns(t *testing.T, overlap bool) {
	p := pair(t, false)
	a, to := addrs(t, p, netip.Addr.Is4), p.Port[1].(*udp.Port)
	if overlap {
		to.OverlapHeaders()
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(a[1].Addr(),
		bth.Port)))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(21, 4))
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	d, pkt := new(frame.Decoder), new(bth.Packet)
	d.RecoverIDs()
	for round := range 300 {
		size := []int{1, 15, 16, 17, 1 + random.IntN(1400), 4353, 20_000, 60_000}[round%8]
		data := make([]byte, 1+random.IntN(min(64*size, 65_000)))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		if err := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_UDP, unix.UDP_SEGMENT, size)
		}); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Skipf("the kernel does not support UDP_SEGMENT: %v", err)
		}
		_, _ = conn.Write(data) // the kernel refuses some sizes
		send(t, p.Port[0], &path, 64)
		for seen := false; !seen; {
			var bufs [64]driver.Buf
			n := to.Receive(bufs[:])
			for f := range frames(to, bufs[:n]) {
				seen = seen || d.Decode(f, pkt) == frame.ReasonOK &&
					bytes.Equal(pkt.Payload, counting(64))
			}
			if to.Release(bufs[:n]); n == 0 {
				if err := to.Wait(time.Second); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if s := to.Stats(); s.RxDropped == 0 {
		t.Error("no forged run was counted")
	}
	if rx, lines := to.FreeBuffers(); rx != udp.RxBuffers || overlap && lines != udp.LineCount {
		t.Errorf("%d buffers for packets and %d for runs are free", rx, lines)
	}
}

// Packets in memory of the owner get the headers of the frame before them. They travel as one run,
// or after a frame that is dropped not at all.
func TestJoinedPackets(t *testing.T) {
	for _, is := range []func(netip.Addr) bool{netip.Addr.Is4, global6} {
		p := open(t, testbed.Config{UDP: true, Veth: true, MTU: 4200, Offloads: true})
		a := addrs(t, p, is)
		from, to := p.Port[0].(*udp.Port), p.Port[1].(*udp.Port)
		other := frame.Address{Src: a[1], Dst: a[0], HopLimit: 64}
		path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
		e := &frame.Encoder{SourcePort: bth.Port}
		const packets, size = 80, 512
		var bufs [2 + packets]driver.Buf
		if n := from.Alloc(bufs[:]); n != len(bufs) {
			t.Fatalf("Alloc() = %d, want %d", n, len(bufs))
		}
		// The first frame and the packet after it have a source address that from does not have.
		memory := make([]byte, len(bufs)*1024)
		at := 0
		for i := range bufs {
			from := &path
			if i < 2 {
				from = &other
			}
			if i == 0 || i == 2 {
				bufs[i].B = packet(e, bufs[i].B, from, bth.PSN(i), size)
				continue
			}
			var b [1024]byte
			full := packet(e, b[:], from, bth.PSN(i), size)
			bufs[i].B = memory[at:][:copy(memory[at:], full[frame.PutHeaders(memory[at:], from):])]
			bufs[i].Token, bufs[i].Size = bufs[i].Token|driver.NoHeaders, len(bufs[i].B)
			at += len(bufs[i].B)
		}
		before := from.Stats()
		if n, err := from.Send(bufs[:]); n != packets || err != nil {
			t.Fatalf("Send() = %d, %v; want %d", n, err, packets)
		}
		s := from.Stats()
		if runs := s.TxRuns - before.TxRuns; runs != 2 || s.TxDropped-before.TxDropped != 2 {
			t.Errorf("%d runs, %d packets dropped, want 2, 2", runs, s.TxDropped-before.TxDropped)
		}
		if n := from.Alloc(bufs[:]); n != len(bufs) {
			t.Errorf("Alloc() = %d after Send, want %d", n, len(bufs))
		}
		from.Free(bufs[:])
		for psn := bth.PSN(2); psn < 2+packets; psn++ {
			receive(t, to, func(pkt *bth.Packet) {
				if pkt.BTH.PSN() != psn || !bytes.Equal(pkt.Payload, counting(size)) {
					t.Fatalf("packet %v of %d bytes, want %v", pkt.BTH.PSN(), len(pkt.Payload), psn)
				}
			})
		}
	}
}

// A run may have packets for several programs. Each gets its own.
func TestRunForSeveralPrograms(t *testing.T) {
	for _, overlap := range []bool{false, true} {
		p := pair(t, false)
		a, to := addrs(t, p, netip.Addr.Is4), p.Port[1].(*udp.Port)
		if overlap {
			to.OverlapHeaders()
		}
		const slot, size, count, rounds = 5, 1024, 9, 2
		to.SetSlot(slot)
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO))
		must(unix.Bind(fd, &unix.SockaddrInet4{Addr: a[0].Addr().As4()}))
		name, err := unix.Getsockname(fd)
		must(err)
		path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64,
			SrcPort: uint16(name.(*unix.SockaddrInet4).Port)}
		var data []byte
		for i := range count {
			var b [2048]byte
			full := packet(&frame.Encoder{ID: uint16(i)}, b[:], &path, bth.PSN(i), size)
			at := len(full) - size - bth.HeaderLen - bth.ICRCLen
			full[at+5] = slot * byte(i%3/2) // every third one is for this program
			(&frame.Encoder{ID: uint16(i)}).Finish(full, at)
			data = append(data, full[at:]...)
		}
		for round := range rounds { // the first run is copied
			if err := unix.SetsockoptInt(fd, unix.SOL_UDP, unix.UDP_SEGMENT,
				len(data)/count); err != nil {
				t.Skipf("the kernel does not support UDP_SEGMENT: %v", err)
			}
			must(unix.Sendto(fd, data, 0, &unix.SockaddrInet4{Port: bth.Port, Addr: a[1].Addr().As4()}))
			must(to.Wait(time.Second))
			var bufs [64]driver.Buf
			n := to.Receive(bufs[:])
			d, pkt, i := new(frame.Decoder), new(bth.Packet), 0
			for f := range frames(to, bufs[:n]) {
				r := d.Decode(f, pkt)
				if r != frame.ReasonOK || pkt.BTH.PSN() != bth.PSN(3*i+2) ||
					!bytes.Equal(pkt.Payload, counting(size)) {
					t.Errorf("overlap %v, round %d, packet %d: Decode() = %v, PSN %v", overlap, round,
						i, r, pkt.BTH.PSN())
				}
				i++
			}
			if i != count/3 {
				t.Fatalf("overlap %v, round %d: %d packets, want %d", overlap, round, i, count/3)
			}
			to.Release(bufs[:n])
		}
		if n := to.Stats().RxDropped; n != rounds*(count-count/3) {
			t.Errorf("%d packets dropped, want %d", n, rounds*(count-count/3))
		}
	}
}

// A packet that continues a run after a frame that was dropped is sent, and so are those that are
// joined to it.
func TestJoinAfterDropped(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	from, to := p.Port[0].(*udp.Port), p.Port[1].(*udp.Port)
	path := frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	removed := frame.Address{Src: a[1], Dst: a[0], HopLimit: 64}
	e := &frame.Encoder{SourcePort: bth.Port}
	const dropped, joined, packets = 2, 4, 5
	var bufs [packets]driver.Buf
	if n := from.Alloc(bufs[:]); n != len(bufs) {
		t.Fatalf("Alloc() = %d, want %d", n, len(bufs))
	}
	for i, psn := range []bth.PSN{0, 1, 9, 2, 3} {
		if i == dropped {
			bufs[i].B = packet(e, bufs[i].B, &removed, psn, 64)
			continue
		}
		if bufs[i].B = packet(e, bufs[i].B, &path, psn, 64); i == joined {
			bufs[i].B = bytes.Clone(bufs[i].B[udpmsg.LenV4:])
			bufs[i].Token, bufs[i].Size = bufs[i].Token|driver.NoHeaders, len(bufs[i].B)
		}
	}
	if n, err := from.Send(bufs[:]); n != packets-1 || err != nil {
		t.Fatalf("Send() = %d, %v; want %d", n, err, packets-1)
	}
	for want := range bth.PSN(packets - 1) {
		receive(t, to, func(pkt *bth.Packet) {
			if pkt.BTH.PSN() != want {
				t.Fatalf("packet %v, want %v", pkt.BTH.PSN(), want)
			}
		})
	}
}
