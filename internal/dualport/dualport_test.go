package dualport

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/udp"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

const limit = 10 * time.Second // for what takes milliseconds on an idle machine

// open returns a Port on side A of a veth pair.
func open(t *testing.T) (*Port, *veth.Pair) {
	t.Helper()
	pair, err := veth.New(veth.Options{NoIPv6: true})
	if errors.Is(err, veth.ErrPermission) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Close() })
	network, err := xdp.Open(pair.A.Iface, xdp.Options{NetNS: pair.A.Fd()})
	if err != nil {
		t.Fatal(err)
	}
	local, err := udp.Open(pair.A.Iface, udp.Options{NetNS: pair.A.Fd(), Shared: true})
	if err != nil {
		_ = network.Close()
		t.Fatal(err)
	}
	p, err := New(network, local)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, pair
}

// socket returns a UDP socket in the namespace of a side.
func socket(t *testing.T, e *veth.End, port uint16) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := e.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: int(port)})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// payload returns a packet with a number: a BTH, 8 bytes and the room of an ICRC.
func payload(number uint64) []byte {
	b := make([]byte, bth.HeaderLen+8+bth.ICRCLen)
	bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCSendOnly, PKey: bth.DefaultPKey, DestQP: 7})
	binary.BigEndian.PutUint64(b[bth.HeaderLen:], number)
	return b
}

func numberOf(packet []byte) uint64 { return binary.BigEndian.Uint64(packet[bth.HeaderLen:]) }

// receive waits for a frame and returns its source MAC, its number, and whether it came through the
// UDP port.
func receive(t *testing.T, p *Port) (from bth.MAC, number uint64, local bool) {
	t.Helper()
	var bufs [1]driver.Buf
	for end := time.Now().Add(limit); p.Receive(bufs[:]) == 0; {
		if time.Now().After(end) {
			t.Fatal("no frame has arrived")
		}
		if err := p.Wait(time.Second); err != nil {
			t.Fatal(err)
		}
	}
	b := bufs[0].B
	from, number = bth.MAC(b[6:12]), numberOf(b[14+20+8:])
	local = bufs[0].Token&localToken != 0
	p.Release(bufs[:])
	return from, number, local
}

// Frames of programs of this host arrive through the UDP port, those of other hosts through AF_XDP.
func TestReceive(t *testing.T) {
	p, pair := open(t)
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(pair.A.IPv4.Addr(), bth.Port))
	here, there := socket(t, &pair.A, 0), socket(t, &pair.B, 0)
	for i := range uint64(20) {
		for _, c := range []struct {
			from  *net.UDPConn
			mac   bth.MAC
			local bool
		}{{here, pair.A.MAC, true}, {there, pair.B.MAC, false}} {
			number := 2*i + 1
			if _, err := c.from.WriteToUDP(payload(number), to); err != nil {
				t.Fatal(err)
			}
			mac, got, local := receive(t, p)
			if mac != c.mac || got != number || local != c.local {
				t.Fatalf("received number %d from %v, local %v; want %d, %v, %v", got, mac, local,
					number, c.mac, c.local)
			}
		}
	}
}

// Frames to this host go through the UDP port, those to other hosts through AF_XDP, also those of
// one call.
func TestSend(t *testing.T) {
	p, pair := open(t)
	there := socket(t, &pair.B, bth.Port)
	sides := []*veth.End{&pair.A, &pair.B, &pair.A, &pair.B}
	bufs := make([]driver.Buf, len(sides))
	if n := p.Alloc(bufs); n != len(bufs) {
		t.Fatalf("Alloc() = %d, want %d", n, len(bufs))
	}
	for i, side := range sides {
		b := bufs[i].B
		at := frame.PutHeaders(b, &frame.Address{
			SrcMAC: pair.A.MAC, DstMAC: side.MAC, Src: bth.GIDFromAddr(pair.A.IPv4.Addr()),
			Dst: bth.GIDFromAddr(side.IPv4.Addr()), SrcPort: bth.Port, HopLimit: 64})
		b = b[:at+copy(b[at:], payload(uint64(i)))]
		new(frame.Encoder).Finish(b, at)
		bufs[i].B = b
	}
	if n, err := p.Send(bufs); n != len(bufs) || err != nil {
		t.Fatalf("Send() = %d, %v; want %d", n, err, len(bufs))
	}
	for _, want := range []uint64{0, 2} {
		if mac, got, local := receive(t, p); got != want || !local || mac != pair.A.MAC {
			t.Errorf("received number %d from %v, local %v; want %d of this host", got, mac, local, want)
		}
	}
	b := make([]byte, 1500)
	for _, want := range []uint64{1, 3} {
		if err := there.SetReadDeadline(time.Now().Add(limit)); err != nil {
			t.Fatal(err)
		}
		if n, err := there.Read(b); err != nil || n < len(payload(0)) || numberOf(b) != want {
			t.Errorf("the other host received %d bytes, %v; want number %d", n, err, want)
		}
	}
	if s := p.Stats(); s.TxDropped != 0 {
		t.Errorf("%d frames were dropped, want 0", s.TxDropped)
	}
}

// The owner may watch a descriptor, which ends its sleep.
func TestWatch(t *testing.T) {
	p, _ := open(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	watcher, ok := driver.Find[driver.Watcher](driver.Port(p))
	if !ok {
		t.Fatal("the port does not watch descriptors")
	}
	watcher.Watch(int(r.Fd()))
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(limit); !watcher.Watched(); {
		if err := p.Wait(limit); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(end) {
			t.Fatal("the descriptor does not end the sleep")
		}
	}
}

// Joining groups while the port is being closed, and after that, touches no descriptor of others.
func TestGroupsDuringClose(t *testing.T) {
	p, _ := open(t)
	group := netip.AddrFrom4([4]byte{239, 1, 2, 3})
	if err := p.JoinGroup(group); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	begun := make(chan struct{})
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			_ = p.LeaveGroup(group) // errors after Close
			_ = p.JoinGroup(group)
			if i == 0 {
				close(begun)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	<-begun
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()

	// The next epoll instance gets the number of the closed one. A late refresh must not use it.
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(poll)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	p.poll = poll
	e := unix.EpollEvent{Events: unix.EPOLLIN}
	if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, int(r.Fd()), &e); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.shares = append(p.shares, int(r.Fd())) // a late refresh would remove it
	p.mu.Unlock()
	p.refresh()
	if _, err := w.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	var events [1]unix.EpollEvent
	if n, err := unix.EpollWait(poll, events[:], 1000); n != 1 || err != nil {
		t.Errorf("EpollWait() = %d, %v; want the event of a foreign descriptor", n, err)
	}
}
