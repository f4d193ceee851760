package udpmsg

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"golang.org/x/sys/unix"
)

// connection is a listener with a connected socket, and a listener of the peer.
type connection struct {
	listener, peer Listener
	c              *Connected
	sender         *Sender
	path           *frame.Address
}

func connect(t *testing.T, local, peer string) *connection {
	t.Helper()
	a, b := netip.MustParseAddr(local), netip.MustParseAddr(peer)
	var n connection
	var err error
	if n.listener, err = Listen(a, 1, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(n.listener.FD) })
	if n.peer, err = Listen(b, 1, false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(n.peer.FD) })
	if n.c, err = Connect([]int{n.listener.FD}, a, 1, b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.c.Close)
	for range maxTries {
		n.c.Number()
	}
	if !n.c.Ready() {
		t.Fatal("the socket does not know the identification of its packets")
	}
	n.sender = NewSender()
	n.path = &frame.Address{Src: bth.GIDFromAddr(a), Dst: bth.GIDFromAddr(b), HopLimit: 64,
		SrcPort: bth.Port}
	return &n
}

// send sends a packet and reports whether SendTo has sent it.
func (n *connection) send() bool {
	b := packets(&frame.Encoder{SourcePort: bth.Port}, n.path, bth.RCSendOnly, 0, 1)[0]
	if n.sender.SendTo(n.c, b, LenV4) {
		return true
	}
	n.sender.Add(Socket{FD: n.listener.FD, Port: bth.Port}, b, LenV4)
	n.sender.Flush()
	return false
}

// receive reads a packet of the peer and returns the identification with which its ICRC is correct.
func (n *connection) receive(t *testing.T) uint16 {
	t.Helper()
	b := make([]byte, 2048)
	at := frame.PutHeaders(b, n.path)
	await(n.peer.FD)
	length, err := unix.Read(n.peer.FD, b[at:])
	if err != nil {
		t.Fatal(err)
	}
	b = b[:at+length]
	icrc := [4]byte(b[len(b)-4:])
	new(frame.Encoder).Finish(b, at) // writes the headers with identification 0
	copy(b[len(b)-4:], icrc[:])
	d := new(frame.Decoder)
	d.RecoverIDs()
	if r := d.Decode(b, new(bth.Packet)); r != frame.ReasonOK {
		t.Fatalf("Decode() = %v", r)
	}
	return binary.BigEndian.Uint16(b[etherLen+4:])
}

// sniffer returns a function that returns the identification of the latest packet to a peer.
func sniffer(t *testing.T, peer netip.Addr) func() uint16 {
	t.Helper()
	network := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_IP))
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, int(network))
	if errors.Is(err, unix.EPERM) {
		t.Skip("needs root to see IP headers")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() (id uint16) {
		b := make([]byte, 2048)
		for {
			n, err := unix.Read(fd, b)
			if err != nil {
				return id
			}
			if to, _ := netip.AddrFromSlice(b[16:20]); n > ipv4Len+udpLen && to == peer {
				id = binary.BigEndian.Uint16(b[4:])
			}
		}
	}
}

// The ICRC of packets covers the identification that the kernel gives them, which counts from a low
// value, also if packets to other sockets lie between them.
func TestIdentifications(t *testing.T) {
	n := connect(t, "127.73.21.1", "127.73.21.2")
	last := sniffer(t, netip.MustParseAddr("127.73.21.2"))
	var before uint16
	for i := range 200 {
		alone := i%10 != 3
		if !alone {
			n.path.HopLimit = 63
		}
		if n.send() != alone {
			t.Fatalf("packet %d: SendTo() = %v, want %v", i, !alone, alone)
		}
		n.path.HopLimit = 64
		id := n.receive(t)
		if want := last(); id != want {
			t.Fatalf("packet %d: the ICRC is that for identification %d, but it has %d", i, id, want)
		}
		switch {
		case !alone && id != 0:
			t.Fatalf("packet %d: identification %d, want 0", i, id)
		case alone && i > 0 && id != before+1 || i == 0 && id > maxFirst:
			t.Fatalf("packet %d: identification %d after %d", i, id, before)
		case alone:
			before = id
		}
	}
	if s := n.sender.Stats; s.TxFrames != 200 || s.TxDropped != 0 {
		t.Errorf("TxFrames = %d, TxDropped = %d, want 200, 0", s.TxFrames, s.TxDropped)
	}
}

// After the kernel has reported that the peer had no socket, packets go through the listener until
// the identification is known again.
func TestRefusedConnected(t *testing.T) {
	n := connect(t, "127.73.22.1", "127.73.22.2")
	if !n.send() {
		t.Fatal("SendTo() = false")
	}
	first := n.receive(t)
	_ = unix.Close(n.peer.FD)
	if !n.send() {
		t.Fatal("SendTo() = false")
	}
	var err error
	if n.peer, err = Listen(netip.MustParseAddr("127.73.22.2"), 1, false); err != nil {
		t.Fatal(err)
	}
	if n.send() || n.c.Ready() {
		t.Fatal("SendTo() = true after ICMP has reported a closed port")
	}
	if id := n.receive(t); id != 0 {
		t.Errorf("identification %d from the listener, want 0", id)
	}
	n.c.Number()
	if !n.send() {
		t.Fatal("SendTo() = false after Number")
	}
	if id := n.receive(t); id <= first || id > first+16 {
		t.Errorf("identification %d, want slightly more than %d", id, first)
	}
}

// The connected socket receives from UDP port 4791 of the peer, and the listener everything else.
// Nobody else gets the address.
func TestConnectedReceives(t *testing.T) {
	n := connect(t, "127.73.23.1", "127.73.23.2")
	to := &unix.SockaddrInet4{Port: bth.Port, Addr: [4]byte{127, 73, 23, 1}}
	other := socket(t, netip.MustParseAddr("127.73.23.2"), 0)
	third := socket(t, netip.MustParseAddr("127.73.23.3"), bth.Port)
	for _, test := range []struct {
		name     string
		from, in int
		not      int
	}{
		{"port 4791 of the peer", n.peer.FD, n.c.FD, n.listener.FD},
		{"another port of the peer", other, n.listener.FD, n.c.FD},
		{"another address", third, n.listener.FD, n.c.FD},
	} {
		if err := unix.Sendto(test.from, []byte("packet"), 0, to); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		await(test.in)
		if k, err := unix.Read(test.in, b); k != 6 || err != nil {
			t.Errorf("%s: Read() = %d, %v", test.name, k, err)
		}
		if _, err := unix.Read(test.not, b); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%s: Read() = %v from the other socket, want EAGAIN", test.name, err)
		}
	}
	for _, shared := range []bool{false, true} {
		l, err := Listen(netip.MustParseAddr("127.73.23.1"), 1, shared)
		if err == nil {
			_ = unix.Close(l.FD)
		}
		if !errors.Is(err, driver.ErrBusy) || !strings.Contains(err.Error(), "`ss -uanp sport = :4791`") {
			t.Errorf("Listen() = %v, want %v with a command that lists the program", err, driver.ErrBusy)
		}
	}
}

func TestSendToDoesNotAllocate(t *testing.T) {
	n := connect(t, "127.73.24.1", "127.73.24.2")
	b := packets(&frame.Encoder{SourcePort: bth.Port}, n.path, bth.RCSendOnly, 0, 1)[0]
	in := make([]byte, 2048)
	if k := testing.AllocsPerRun(100, func() {
		if !n.sender.SendTo(n.c, b, LenV4) {
			t.Fatal("SendTo() = false")
		}
		_, _ = unix.Read(n.peer.FD, in)
	}); k != 0 {
		t.Errorf("%v allocations", k)
	}
}
