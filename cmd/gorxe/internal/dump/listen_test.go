package dump

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// patience is how long a test waits for a frame that must come, and silence how
// long for one that must not.
const (
	patience = 5 * time.Second
	silence  = 200 * time.Millisecond
)

func newPair(t *testing.T) *veth.Pair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces and a veth pair of its own")
	}
	p, err := veth.New(veth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// listenAt listens on one end, as gorxe dump does in that namespace.
func listenAt(t *testing.T, e *veth.End, iface string) (source, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var s source
	err := e.Do(func() (err error) {
		if iface == "" {
			s, err = open(ctx, "", nil)
		} else {
			s, err = open(ctx, iface, nil)
		}
		return err
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); s.Close() })
	return s, cancel
}

// rawSender sends whole frames from one end, as any program of that host might.
func rawSender(t *testing.T, e *veth.End) func(f []byte) {
	t.Helper()
	fd := -1
	err := e.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(f []byte) {
		t.Helper()
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: e.Index}); err != nil {
			t.Fatal(err)
		}
	}
}

// send builds a SEND from one end to the other, told by its PSN.
func sendFrame(from, to *veth.End, vlan uint16, psn bth.PSN) []byte {
	f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+8+bth.ICRCLen)
	n := frame.PutHeaders(f, &frame.Address{
		SrcMAC: from.MAC, DstMAC: to.MAC, VLAN: vlan, HopLimit: 64,
		Src: bth.GIDFromAddr(from.IPv4.Addr()), Dst: bth.GIDFromAddr(to.IPv4.Addr()), SrcPort: 0xc000,
	})
	bth.PutBTH(f[n:], &bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: 0x77, PSN: psn})
	f = f[:n+bth.HeaderLen+8+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}

// sees tells whether the listener hears a packet of that PSN within d.
func sees(t *testing.T, s source, psn bth.PSN, d time.Duration) bool {
	t.Helper()
	sock := s.(*socket)
	deadline := time.Now().Add(d)
	if err := sock.f.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := s.next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		var p bth.Packet
		if new(frame.Decoder).Decode(c.frame, &p) == frame.ReasonOK && p.BTH.PSN() == psn {
			return true
		}
	}
}

// The help says which packets a listener does not see: this is the proof. What an
// AF_XDP socket receives is taken before the kernel's listeners, and what it sends
// goes round them, in both modes; the other end of the link sees it.
func TestWhatAListenerSees(t *testing.T) {
	for _, mode := range []xdp.Mode{xdp.Native, xdp.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t)
			send := rawSender(t, &pair.A)
			atA, _ := listenAt(t, &pair.A, pair.A.Iface)
			atB, _ := listenAt(t, &pair.B, pair.B.Iface)

			send(sendFrame(&pair.A, &pair.B, 0, 1))
			if !sees(t, atA, 1, patience) || !sees(t, atB, 1, patience) {
				t.Fatal("without AF_XDP both ends see a packet")
			}

			port, err := xdp.Open(pair.B.Iface, xdp.Options{Mode: mode, NetNS: pair.B.Fd()})
			if err != nil {
				t.Fatal(err)
			}
			defer port.Close()
			if err := pair.B.Do(func() error { return checkNote(pair.B.Iface, true) }); err != nil {
				t.Error(err)
			}
			if err := pair.A.Do(func() error { return checkNote(pair.A.Iface, false) }); err != nil {
				t.Error(err)
			}
			send(sendFrame(&pair.A, &pair.B, 0, 2))
			if !received(t, port, 2) {
				t.Fatal("the AF_XDP port did not receive it")
			}
			if sees(t, atB, 2, silence) {
				t.Error("a listener saw what AF_XDP received: the help says otherwise")
			}
			transmit(t, port, sendFrame(&pair.B, &pair.A, 0, 3))
			if !sees(t, atA, 3, patience) {
				t.Error("the far end must see what AF_XDP sent")
			}
			if sees(t, atB, 3, silence) {
				t.Error("a listener saw what AF_XDP sent: the help says otherwise")
			}
		})
	}
}

// checkNote sees whether the user is told of an XDP program in the way.
func checkNote(iface string, want bool) error {
	var b strings.Builder
	noteBypass(&b, iface)
	if strings.Contains(b.String(), iface+" carries an XDP program") != want {
		return fmt.Errorf("%s: note %q, want one: %v", iface, b.String(), want)
	}
	return nil
}

func received(t *testing.T, port *xdp.Port, psn bth.PSN) bool {
	t.Helper()
	bufs := make([]driver.Buf, 8)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		n := port.Receive(bufs)
		found := false
		for _, b := range bufs[:n] {
			var p bth.Packet
			found = found || new(frame.Decoder).Decode(b.B, &p) == frame.ReasonOK && p.BTH.PSN() == psn
		}
		port.Release(bufs[:n])
		if found {
			return true
		}
		if err := port.Wait(10 * time.Millisecond); err != nil {
			t.Fatal(err)
		}
	}
	return false
}

func transmit(t *testing.T, port *xdp.Port, f []byte) {
	t.Helper()
	bufs := make([]driver.Buf, 1)
	if port.Alloc(bufs) != 1 {
		t.Fatal("no transmit buffer")
	}
	bufs[0].B = bufs[0].B[:copy(bufs[0].B, f)]
	if n, err := port.Send(bufs); n != 1 {
		t.Fatal(err)
	}
}

// The kernel takes VLAN tags off before a listener gets the frame; dump shows them.
func TestListenerPutsVLANBack(t *testing.T) {
	pair := newPair(t)
	at, _ := listenAt(t, &pair.B, "") // all interfaces
	send := rawSender(t, &pair.A)
	f := sendFrame(&pair.A, &pair.B, 3<<13|42, 7)
	send(f)
	at.(*socket).f.SetReadDeadline(time.Now().Add(patience))
	c, err := at.next()
	if err != nil {
		t.Fatal(err)
	}
	if string(c.frame) != string(f) || c.info.CaptureLength != len(f) || c.info.Length != len(f) {
		t.Errorf("listened to\n% x\nwant\n% x", c.frame, f)
	}
	if age := time.Since(c.info.Timestamp); age < 0 || age > time.Minute {
		t.Errorf("time stamp %v", c.info.Timestamp)
	}
}

// What is not RoCE does not even reach the program; Ctrl-C ends listening well.
func TestListenerFiltersAndEnds(t *testing.T) {
	pair := newPair(t)
	at, cancel := listenAt(t, &pair.B, pair.B.Iface)
	send := rawSender(t, &pair.A)
	other := sendFrame(&pair.A, &pair.B, 0, 1)
	binary.BigEndian.PutUint16(other[36:], 4792) // UDP port
	send(other)
	arp := make([]byte, 60)
	copy(arp, other[:12])
	binary.BigEndian.PutUint16(arp[12:], unix.ETH_P_ARP)
	send(arp)
	six := sendFrame6(&pair.A, &pair.B, 1)
	binary.BigEndian.PutUint16(six[56:], 53)
	send(six)
	send(sendFrame(&pair.A, &pair.B, 0, 2))
	send(sendFrame6(&pair.A, &pair.B, 3))

	at.(*socket).f.SetReadDeadline(time.Now().Add(patience))
	for _, want := range []bth.PSN{2, 3} {
		c, err := at.next()
		if err != nil {
			t.Fatal(err)
		}
		var p bth.Packet
		if r := new(frame.Decoder).Decode(c.frame, &p); r != frame.ReasonOK || p.BTH.PSN() != want {
			t.Fatalf("listened to a frame that is %v, want PSN %v", r, want)
		}
	}
	if n := at.lost(); n != 0 {
		t.Errorf("%d frames lost", n)
	}
	ended := make(chan error, 1)
	go func() { _, err := at.next(); ended <- err }()
	cancel()
	select {
	case err := <-ended:
		if err != io.EOF {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("cancelling does not end listening")
	}
}

// sendFrame6 is sendFrame over IPv6.
func sendFrame6(from, to *veth.End, psn bth.PSN) []byte {
	f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+bth.ICRCLen)
	n := frame.PutHeaders(f, &frame.Address{
		SrcMAC: from.MAC, DstMAC: to.MAC, HopLimit: 64,
		Src: bth.GIDFromAddr(from.IPv6.Addr()), Dst: bth.GIDFromAddr(to.IPv6.Addr()), SrcPort: 0xc000,
	})
	bth.PutBTH(f[n:], &bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: 0x77, PSN: psn})
	f = f[:n+bth.HeaderLen+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}

// The whole command on an interface: -c ends it, -w keeps what it saw under the
// interface's name.
func TestDumpInterface(t *testing.T) {
	pair := newPair(t)
	send := rawSender(t, &pair.A)
	saved := filepath.Join(t.TempDir(), "x.pcapng")
	done := make(chan struct{})
	go func() {
		for psn := bth.PSN(1); ; psn++ {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				send(sendFrame(&pair.A, &pair.B, 0, psn))
			}
		}
	}()
	defer close(done)
	var r result
	err := pair.B.Do(func() error {
		r = run(t, nil, "--json", "-c", "3", "-w", saved, pair.B.Iface)
		return r.err
	})
	if err != nil {
		t.Fatal(err)
	}
	records := r.records(t)
	if len(records) != 3 || records[0]["iface"] != pair.B.Iface || records[2]["n"] != 3.0 {
		t.Fatalf("%v", records)
	}
	if again := run(t, nil, "--json", saved); len(again.records(t)) != 3 {
		t.Errorf("the file holds\n%s", again.out)
	}
	f, err := os.Open(saved)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ng, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if intf, err := ng.Interface(0); err != nil || intf.Name != pair.B.Iface {
		t.Errorf("interface %q, %v", intf.Name, err)
	}
}

func TestInterfaceThatIsDown(t *testing.T) {
	pair := newPair(t)
	err := pair.B.Do(func() error {
		link, err := netlink.LinkByName(pair.B.Iface)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(link); err != nil {
			return err
		}
		if r := run(t, nil, pair.B.Iface); r.err == nil || !strings.Contains(r.err.Error(), "ip link set "+pair.B.Iface+" up") {
			return fmt.Errorf("a link that is down: %v", r.err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
