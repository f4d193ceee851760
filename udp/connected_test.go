package udp_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/udp"
)

// talkSize is the length of the payloads of talk. Its runs are long.
const talkSize = 512

// talk sends packets from one port to the other, in calls with a number of frames, and expects them
// in order. psn is the PSN of the first one.
func talk(t *testing.T, d *frame.Decoder, from, to driver.Port, path *frame.Address, psn bth.PSN,
	counts ...int) bth.PSN {
	t.Helper()
	e := &frame.Encoder{SourcePort: bth.Port}
	pkt := new(bth.Packet)
	for _, count := range counts {
		bufs := make([]driver.Buf, count)
		if from.Alloc(bufs) != count {
			t.Fatal("no buffers")
		}
		for i := range bufs {
			bufs[i].B = packet(e, bufs[i].B, path, psn.Add(uint32(i)), talkSize)
		}
		if n, err := from.Send(bufs); n != count || err != nil {
			t.Fatalf("Send() = %d, %v", n, err)
		}
		for deadline := time.Now().Add(10 * time.Second); count > 0; {
			n := to.Receive(bufs)
			for f := range frames(to.(*udp.Port), bufs[:n]) {
				if r := d.Decode(f, pkt); r != frame.ReasonOK {
					t.Fatalf("PSN %v: Decode() = %v", psn, r)
				}
				if pkt.BTH.PSN() != psn || pkt.Src != path.Src || pkt.Dst != path.Dst ||
					pkt.SrcPort != bth.Port || pkt.HopLimit != path.HopLimit ||
					pkt.TrafficClass != path.TrafficClass ||
					!bytes.Equal(pkt.Payload, counting(talkSize)) {
					t.Fatalf("received PSN %v from %v, port %d, class %#x, hop limit %d; sent %v, %+v",
						pkt.BTH.PSN(), pkt.Src, pkt.SrcPort, pkt.TrafficClass, pkt.HopLimit, psn, path)
				}
				psn = psn.Add(1)
				count--
			}
			to.Release(bufs[:n])
			if n > 0 {
				continue
			}
			if time.Now().After(deadline) {
				t.Fatalf("%d packets are missing", count)
			}
			_ = to.Wait(time.Millisecond)
		}
	}
	return psn
}

// alone are calls of one frame each, so many that the socket is connected and numbers its packets.
func alone(n int) []int {
	counts := make([]int, n)
	for i := range counts {
		counts[i] = 1
	}
	return counts
}

func connections(p driver.Port) int { return p.(*udp.Port).Connections() }

// Packets between two peers that send them one by one go through connected sockets, arrive in
// order, also those in runs between them, and no other packets are lost.
func TestConnected(t *testing.T) {
	for _, c := range []struct {
		name string
		veth bool
		addr func(netip.Addr) bool
	}{
		{"loopback", false, netip.Addr.Is4},
		{"IPv4", true, netip.Addr.Is4},
		{"IPv6", true, global6},
		{"link-local", true, netip.Addr.IsLinkLocalUnicast},
	} {
		for _, overlap := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, overlap %v", c.name, overlap), func(t *testing.T) {
				testConnected(t, pair(t, c.veth), c.addr, overlap)
			})
		}
	}
}

func testConnected(t *testing.T, p *testbed.Ports, is func(netip.Addr) bool, overlap bool) {
	for _, port := range p.Port {
		if overlap {
			port.(*udp.Port).OverlapHeaders()
		}
	}
	a := addrs(t, p, is)
	there := &frame.Address{Src: a[0], Dst: a[1], HopLimit: 64, TrafficClass: 2}
	back := &frame.Address{Src: a[1], Dst: a[0], HopLimit: 64, TrafficClass: 2}
	var d [2]frame.Decoder
	for i := range d {
		d[i].RecoverIDs()
	}
	var psn [2]bth.PSN
	for i := range 12 {
		d[0].SetTime(int64(i) * 1e6)
		d[1].SetTime(int64(i) * 1e6)
		counts := append(alone(udp.ConnectAfter), 40, 1, 3, 1, 30)
		psn[0] = talk(t, &d[1], p.Port[0], p.Port[1], there, psn[0], counts...)
		psn[1] = talk(t, &d[0], p.Port[1], p.Port[0], back, psn[1], counts...)
	}
	for i, port := range p.Port {
		if n := connections(port); n != 1 {
			t.Errorf("port %d has %d connected sockets, want 1", i, n)
		}
		if s := port.(*udp.Port).Stats(); s.TxDropped != 0 || s.RxDropped != 0 {
			t.Errorf("Stats() = %+v, want no drops", s)
		}
	}
}

// The hop limit of datagrams is that of each packet, also behind a connected socket that has
// received other packets before.
func TestConnectedDatagrams(t *testing.T) {
	for _, c := range []struct {
		name string
		addr func(netip.Addr) bool
	}{
		{"IPv4", netip.Addr.Is4},
		{"IPv6", global6},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pair(t, true)
			a := addrs(t, p, c.addr)
			d := new(frame.Decoder)
			d.RecoverIDs()
			path := &frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
			back := &frame.Address{Src: a[1], Dst: a[0], HopLimit: 64}
			talk(t, new(frame.Decoder), p.Port[1], p.Port[0], back, 0, alone(udp.ConnectAfter)...)
			talk(t, d, p.Port[0], p.Port[1], path, 0, alone(udp.ConnectAfter)...)
			if connections(p.Port[1]) != 1 {
				t.Fatal("the receiver has no connected socket")
			}
			for i := range 20 {
				path.HopLimit = uint8(1 + i) // the neighbor is on the same link
				got := datagram(t, d, p.Port[0], p.Port[1], path)
				if i > 0 && got != path.HopLimit { // the first one makes the kernel report it
					t.Fatalf("datagram %d has hop limit %d, want %d", i, got, path.HopLimit)
				}
			}
		})
	}
}

// datagram sends a datagram and returns the hop limit with which it arrives.
func datagram(t *testing.T, d *frame.Decoder, from, to driver.Port, path *frame.Address) uint8 {
	t.Helper()
	var bufs [1]driver.Buf
	if from.Alloc(bufs[:]) != 1 {
		t.Fatal("no buffer")
	}
	at := frame.PutHeaders(bufs[0].B, path)
	b := bufs[0].B[:at+bth.HeaderLen+bth.DETHLen+4+bth.ICRCLen]
	clear(b[at:])
	bth.PutBTH(b[at:], &bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: 7})
	(&frame.Encoder{SourcePort: bth.Port}).Finish(b, at)
	bufs[0].B = b
	if n, err := from.Send(bufs[:]); n != 1 || err != nil {
		t.Fatalf("Send() = %d, %v", n, err)
	}
	for end := time.Now().Add(10 * time.Second); to.Receive(bufs[:]) == 0; {
		if time.Now().After(end) {
			t.Fatal("the datagram is missing")
		}
		_ = to.Wait(time.Millisecond)
	}
	defer to.Release(bufs[:])
	pkt := new(bth.Packet)
	if r := d.Decode(bufs[0].B, pkt); r != frame.ReasonOK {
		t.Fatalf("Decode() = %v", r)
	}
	return pkt.HopLimit
}

// The number of connected sockets is limited, and those that are not used make room.
func TestManyPeers(t *testing.T) {
	p := pair(t, false)
	a := addrs(t, p, netip.Addr.Is4)
	d := new(frame.Decoder)
	d.RecoverIDs()
	server := p.Port[0]
	for i := range udp.MaxConnected + 2 {
		peer := open(t, testbed.Config{UDP: true, MTU: 4200}).Port[0]
		gid := bth.GIDFromAddr(peer.(*udp.Port).Addrs()[0].Addr())
		path := &frame.Address{Src: a[0], Dst: gid, HopLimit: 64}
		talk(t, d, server, peer, path, 0, alone(2*udp.ConnectAfter)...)
		if n := connections(server); n != min(i+1, udp.MaxConnected) {
			t.Fatalf("%d connected sockets after %d peers, want at most %d", n, i+1,
				udp.MaxConnected)
		}
	}
	// None of them is used while packets go to another peer for some time.
	path := &frame.Address{Src: a[0], Dst: a[1], HopLimit: 64}
	for deadline := time.Now().Add(10 * time.Second); server.(*udp.Port).ConnectedTo(a[1]) == 0; {
		if time.Now().After(deadline) {
			t.Fatal("unused sockets do not make room")
		}
		talk(t, d, server, p.Port[1], path, 0, alone(udp.ConnectAfter)...)
	}
	if n := connections(server); n != udp.MaxConnected {
		t.Errorf("%d connected sockets, want %d", n, udp.MaxConnected)
	}
}
