package service

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"github.com/gorxe/gorxe/udp"
)

// bind opens a socket as the port of a service does, and returns it and a duplicate.
func bind(t *testing.T, a netip.Addr) (fd, dup int) {
	t.Helper()
	l, err := udpmsg.Listen(a, 1, true)
	if err != nil {
		t.Fatal(err)
	}
	return l.FD, duplicate(t, l.FD)
}

func duplicate(t *testing.T, fd int) int {
	t.Helper()
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return dup
}

// Packets go to the right sockets after any sequence of changes, also while programs keep
// descriptors.
func TestGroup(t *testing.T) {
	a := udp.RandomLoopback()
	list, err := openSocketList()
	if err != nil {
		t.Fatal(err)
	}
	defer list.close()
	present := func(inode uint64) bool {
		set, err := list.read()
		if err != nil {
			t.Fatal(err)
		}
		return set[inode]
	}
	if n, err := list.bound(a); n != 0 || err != nil {
		t.Fatalf("bound() = %d, %v", n, err)
	}
	base, dup := bind(t, a)
	g := &group{addr: a}
	if err := g.rebase(dup); err != nil {
		t.Fatal(err)
	}
	if n, err := list.bound(a); n != 1 || err != nil {
		t.Fatalf("bound() = %d, %v", n, err)
	}
	sender, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	programs := map[uint8]int{} // descriptors
	var kept []int
	defer func() {
		for _, fd := range programs {
			_ = unix.Close(fd)
		}
		for _, fd := range append(kept, base, sender) {
			_ = unix.Close(fd)
		}
		g.closeAll()
	}()
	to := &unix.SockaddrInet4{Port: bth.Port, Addr: a.As4()}
	expect := func(fd int, slot uint8) {
		t.Helper()
		if err := unix.Sendto(sender, []byte{destSlot: slot, 40: 0}, 0, to); err != nil {
			t.Fatal(err)
		}
		var b [64]byte
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
		if _, err := unix.Read(fd, b[:]); err != nil || b[destSlot] != slot {
			t.Fatalf("a packet for slot %d does not arrive: %v", slot, err)
		}
	}
	r := rand.New(rand.NewPCG(3, 4))
	for range 150 {
		slot := uint8(1 + r.IntN(12))
		fd, used := programs[slot]
		switch {
		case r.IntN(12) == 0: // the address was removed and added
			old := base
			base, dup = bind(t, a)
			if err := g.rebase(dup); err != nil {
				t.Fatal(err)
			}
			if err := unix.Close(old); err != nil {
				t.Fatal(err)
			}
		case r.IntN(6) == 0 && len(kept) > 0:
			if err := unix.Close(kept[0]); err != nil {
				t.Fatal(err)
			}
			kept = kept[1:]
		case used:
			delete(programs, slot)
			g.close(slot)
			if r.IntN(3) == 0 {
				kept = append(kept, fd)
			} else if err := unix.Close(fd); err != nil {
				t.Fatal(err)
			}
		default:
			fd, err := g.open(slot, 1, 0)
			if err != nil {
				t.Fatal(err)
			}
			programs[slot] = duplicate(t, fd)
		}
		g.sweep(present)
		expect(base, 0)
		for slot, fd := range programs {
			expect(fd, slot)
		}
	}
}

func TestRoute(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	all := listeners{0x1061234: {{slot: 3}}, 7: {{slot: 5, addr: a}}}
	mad := func(attribute uint16, body ...byte) []byte {
		m := make([]byte, 256)
		copy(m, []byte{1, 7, 2, 3})
		m[16], m[17] = byte(attribute>>8), byte(attribute)
		copy(m[24:], body)
		return m
	}
	request := func(id uint32) []byte {
		return []byte{9, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, byte(id >> 24), byte(id >> 16),
			byte(id >> 8), byte(id)}
	}
	ids := []byte{9, 0, 0, 1, 8, 0, 0, 2} // of the sender, of the receiver
	for _, c := range []struct {
		name string
		mad  []byte
		dst  netip.Addr
		want uint8
	}{
		{"REQ", mad(0x10, request(0x1061234)...), b, 3},
		{"SIDR_REQ", mad(0x17, request(0x1061234)...), b, 3},
		{"REQ to the address", mad(0x10, request(7)...), a, 5},
		{"REQ to another address", mad(0x10, request(7)...), b, 0},
		{"REQ without listener", mad(0x10, request(8)...), b, 0},
		{"MRA", mad(0x11, ids...), b, 8}, {"REJ", mad(0x12, ids...), b, 8},
		{"REP", mad(0x13, ids...), b, 8}, {"RTU", mad(0x14, ids...), b, 8},
		{"DREQ", mad(0x15, ids...), b, 8}, {"DREP", mad(0x16, ids...), b, 8},
		{"SIDR_REP", mad(0x18, ids...), b, 9},
		{"LAP", mad(0x19, ids...), b, 8}, {"APR", mad(0x1a, ids...), b, 8},
		{"unknown attribute", mad(0x30, ids...), b, 0},
		{"other class", append([]byte{1, 3}, mad(0x13, ids...)[2:]...), b, 0},
		{"short", mad(0x13, ids...)[:255], b, 0}, {"empty", nil, b, 0},
	} {
		if got := route(c.mad, c.dst, all); got != c.want {
			t.Errorf("%s: route() = %d, want %d", c.name, got, c.want)
		}
	}
}

func TestListeners(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	s := listeners{}
	for i, c := range []struct {
		id   uint64
		l    listener
		want error
	}{
		{5, listener{slot: 1, addr: a}, nil},
		{5, listener{slot: 2}, driver.ErrListening},
		{5, listener{slot: 2, addr: a}, driver.ErrListening},
		{5, listener{slot: 2, addr: b}, nil},
		{6, listener{slot: 2}, nil},
		{6, listener{slot: 1, addr: a}, driver.ErrListening},
	} {
		if err := s.add(c.id, c.l); err != c.want {
			t.Errorf("%d: add() = %v, want %v", i, err, c.want)
		}
	}
	if s.remove(5, 3) || !s.remove(5, 2) || s.remove(5, 2) || !s.remove(5, 1) || len(s) != 1 {
		t.Errorf("the listeners are %v, want one on 6", s)
	}
	if err := s.add(5, listener{slot: 2}); err != nil {
		t.Error(err)
	}
}
