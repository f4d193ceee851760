package service

import (
	"encoding/binary"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/udp"
)

// start starts a service on an address of the loopback interface.
func start(t testing.TB, o Options, addrs ...netip.Addr) *Server {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []netip.Addr{udp.RandomLoopback()}
	}
	p, err := udp.Open("lo", udp.Options{Addrs: addrs, Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(filepath.Join(t.TempDir(), "s"), o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// join adds a member.
func join(t *testing.T, s *Server) *MemberPort {
	t.Helper()
	p, err := Join(s.Path(), JoinOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// makeFrame makes a frame with a UD packet to a QPN whose payload has a number.
func makeFrame(b []byte, from, to netip.Addr, qpn bth.QPN, number uint32) []byte {
	n := frame.PutHeaders(b, &frame.Address{Src: bth.GIDFromAddr(from), Dst: bth.GIDFromAddr(to),
		SrcPort: bth.Port, HopLimit: 64})
	info := bth.UDSendOnly.Info()
	bth.PutBTH(b[n:], &bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: qpn})
	bth.PutDETH(b[n+int(info.DETH):], 1, 2)
	end := n + int(info.HeaderLen)
	binary.BigEndian.PutUint32(b[end:], number)
	end += 4 + bth.ICRCLen
	enc := new(frame.Encoder)
	enc.Finish(b[:end], n)
	return b[:end]
}

// send sends a packet from a port to a QPN.
func send(t *testing.T, p driver.Port, from, to netip.Addr, qpn bth.QPN, number uint32) {
	t.Helper()
	var buf [1]driver.Buf
	if p.Alloc(buf[:]) == 0 {
		t.Fatal("Alloc() = 0")
	}
	buf[0].B = makeFrame(buf[0].B, from, to, qpn, number)
	if n, err := p.Send(buf[:]); n != 1 || err != nil {
		t.Fatalf("Send() = %d, %v", n, err)
	}
}

// expect receives a packet and checks its number.
func expect(t *testing.T, p driver.Port, number uint32) {
	t.Helper()
	b := receive(t, p)
	if got := binary.BigEndian.Uint32(b[len(b)-8:]); got != number {
		t.Fatalf("received packet %d, want %d", got, number)
	}
}

// receive receives a frame.
func receive(t *testing.T, p driver.Port) []byte {
	t.Helper()
	var buf [1]driver.Buf
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
		if p.Receive(buf[:]) == 1 {
			b := append([]byte(nil), buf[0].B...)
			p.Release(buf[:])
			return b
		}
		if err := p.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("no packet arrives")
	return nil
}

func qpn(p *MemberPort) bth.QPN { return bth.QPN(p.Slot())<<16 | 7 }

func TestPacketsGoToTheSlot(t *testing.T) {
	s := start(t, Options{})
	a, b, c := join(t, s), join(t, s), join(t, s)
	addr := s.port.Addrs()[0].Addr()
	if a.Slot() == b.Slot() || a.Slot() == c.Slot() || b.Slot() == c.Slot() || a.Slot() == 0 {
		t.Fatalf("slots are %d, %d and %d", a.Slot(), b.Slot(), c.Slot())
	}
	for i, from := range []driver.Port{s.port, a, b, c} {
		k := uint32(10 * i)
		send(t, from, addr, addr, 7, k)
		send(t, from, addr, addr, qpn(a), k+1)
		send(t, from, addr, addr, qpn(b), k+2)
		send(t, from, addr, addr, qpn(c), k+3)
		send(t, from, addr, addr, 250<<16, k+4) // nobody has the slot
		expect(t, s.port, k)
		expect(t, s.port, k+4)
		expect(t, a, k+1)
		expect(t, b, k+2)
		expect(t, c, k+3)
	}
	if err := a.Close(); err != nil { // socket c moves
		t.Fatal(err)
	}
	for s.inUse(a.Slot()) {
		time.Sleep(time.Millisecond)
	}
	send(t, s.port, addr, addr, qpn(b), 102)
	send(t, s.port, addr, addr, qpn(c), 103)
	expect(t, b, 102)
	expect(t, c, 103)
	send(t, b, addr, addr, qpn(a), 104)
	expect(t, s.port, 104)
	d := join(t, s)
	if d.Slot() == a.Slot() {
		t.Errorf("slot %d is used again at once", d.Slot())
	}
	send(t, b, addr, addr, qpn(d), 105)
	expect(t, d, 105)
}

// inUse reports whether a slot has a member or sockets.
func (s *Server) inUse(slot uint8) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		for _, m := range g.socks {
			if m.slot == slot {
				return true
			}
		}
	}
	return s.slots[slot] != nil
}
