package dump

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
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

const (
	patience = 5 * time.Second        // to wait for a frame that must arrive
	silence  = 200 * time.Millisecond // to wait for a frame that must not arrive
)

func newPair(t *testing.T) *veth.Pair {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to create network namespaces and a veth pair")
	}
	p, err := veth.New(veth.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// listenAt opens a live source in the namespace of e, on all interfaces if iface is empty.
func listenAt(t *testing.T, e *veth.End, iface string) (Source, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var s Source
	err := e.Do(func() (err error) {
		s, err = Open(ctx, iface, nil)
		return err
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); s.Close() })
	return s, cancel
}

// rawSender returns a function that sends frames from e through a packet socket.
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

// sendFrame builds a SEND over IPv4.
func sendFrame(from, to *veth.End, vlan uint16, psn bth.PSN) []byte {
	f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+8+bth.ICRCLen)
	n := frame.PutHeaders(f, &frame.Address{
		SrcMAC: from.MAC, DstMAC: to.MAC, VLAN: vlan, HopLimit: 64,
		Src: bth.GIDFromAddr(from.IPv4.Addr()), Dst: bth.GIDFromAddr(to.IPv4.Addr()),
		SrcPort: 0xc000,
	})
	bth.PutBTH(f[n:], &bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: 0x77, PSN: psn})
	f = f[:n+bth.HeaderLen+8+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}

// sees reports whether s returns a packet with this PSN within d.
func sees(t *testing.T, s Source, psn bth.PSN, d time.Duration) bool {
	t.Helper()
	sock := s.(*socket)
	deadline := time.Now().Add(d)
	if err := sock.f.SetReadDeadline(deadline); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := s.Next()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		var p bth.Packet
		if new(frame.Decoder).Decode(c.Frame, &p) == frame.ReasonOK && p.BTH.PSN() == psn {
			return true
		}
	}
}

// The help text says that packet sockets see neither what AF_XDP receives on the same interface nor
// what it sends, in both modes, and that a socket on the peer's interface sees both.
func TestAFXDPBypassesPacketSockets(t *testing.T) {
	for _, mode := range []xdp.Mode{xdp.Native, xdp.Generic} {
		t.Run(mode.String(), func(t *testing.T) {
			pair := newPair(t)
			send := rawSender(t, &pair.A)
			atA, _ := listenAt(t, &pair.A, pair.A.Iface)
			atB, _ := listenAt(t, &pair.B, pair.B.Iface)

			send(sendFrame(&pair.A, &pair.B, 0, 1))
			if !sees(t, atA, 1, patience) || !sees(t, atB, 1, patience) {
				t.Fatal("without AF_XDP, an interface did not see the packet")
			}

			port, err := xdp.Open(pair.B.Iface, xdp.Options{Mode: mode, NetNS: pair.B.Fd()})
			if err != nil {
				t.Fatal(err)
			}
			defer port.Close()
			if err := pair.B.Do(func() error {
				return checkBypassed(pair.B.Iface,
					true)
			}); err != nil {
				t.Error(err)
			}
			if err := pair.A.Do(func() error {
				return checkBypassed(pair.A.Iface,
					false)
			}); err != nil {
				t.Error(err)
			}
			send(sendFrame(&pair.A, &pair.B, 0, 2))
			if !received(t, port, 2) {
				t.Fatal("the AF_XDP port did not receive the packet")
			}
			if sees(t, atB, 2, silence) {
				t.Error("the packet socket saw a packet that AF_XDP received")
			}
			transmit(t, port, sendFrame(&pair.B, &pair.A, 0, 3))
			if !sees(t, atA, 3, patience) {
				t.Error("the peer's interface did not see the packet that AF_XDP sent")
			}
			if sees(t, atB, 3, silence) {
				t.Error("the packet socket saw a packet that AF_XDP sent")
			}
		})
	}
}

func checkBypassed(iface string, want bool) error {
	if got := Bypassed(iface); got != want {
		return fmt.Errorf("Bypassed(%s) = %v, want %v", iface, got, want)
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
			found = found || new(frame.Decoder).Decode(b.B, &p) == frame.ReasonOK &&
				p.BTH.PSN() == psn
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

// The kernel removes VLAN tags before packet sockets get the frame; Next reinserts them.
func TestListenReinsertsVLAN(t *testing.T) {
	pair := newPair(t)
	at, _ := listenAt(t, &pair.B, "") // all interfaces
	send := rawSender(t, &pair.A)
	f := sendFrame(&pair.A, &pair.B, 3<<13|42, 7)
	send(f)
	at.(*socket).f.SetReadDeadline(time.Now().Add(patience))
	c, err := at.Next()
	if err != nil {
		t.Fatal(err)
	}
	if string(c.Frame) != string(f) || c.Info.Length != len(f) {
		t.Errorf("Next() =\n% x\nwant\n% x", c.Frame, f)
	}
	if age := time.Since(c.Info.Time); age < 0 || age > time.Minute {
		t.Errorf("time stamp %v, want the last minute", c.Info.Time)
	}
}

// The socket filter drops all other protocols, and canceling the context ends the source with
// io.EOF.
func TestListenFiltersAndEnds(t *testing.T) {
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
		c, err := at.Next()
		if err != nil {
			t.Fatal(err)
		}
		var p bth.Packet
		if r := new(frame.Decoder).Decode(c.Frame, &p); r != frame.ReasonOK || p.BTH.PSN() != want {
			t.Fatalf("received a frame with result %v, want RoCE with PSN %v", r, want)
		}
	}
	if n := at.Lost(); n != 0 {
		t.Errorf("Lost() = %d, want 0", n)
	}
	ended := make(chan error, 1)
	go func() { _, err := at.Next(); ended <- err }()
	cancel()
	select {
	case err := <-ended:
		if err != io.EOF {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("Next() did not return after the context was canceled")
	}
}

// sendFrame6 builds a SEND over IPv6.
func sendFrame6(from, to *veth.End, psn bth.PSN) []byte {
	f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+bth.ICRCLen)
	n := frame.PutHeaders(f, &frame.Address{
		SrcMAC: from.MAC, DstMAC: to.MAC, HopLimit: 64,
		Src: bth.GIDFromAddr(from.IPv6.Addr()), Dst: bth.GIDFromAddr(to.IPv6.Addr()),
		SrcPort: 0xc000,
	})
	bth.PutBTH(f[n:], &bth.BTHFields{Opcode: bth.RCSendOnly, DestQP: 0x77, PSN: psn})
	f = f[:n+bth.HeaderLen+bth.ICRCLen]
	new(frame.Encoder).Finish(f, n)
	return f
}

// A live source ends at the limit, and records and saved frames have the interface's name.
func TestDumpInterface(t *testing.T) {
	pair := newPair(t)
	src, _ := listenAt(t, &pair.B, pair.B.Iface)
	send := rawSender(t, &pair.A)
	for psn := range bth.PSN(5) {
		send(sendFrame(&pair.A, &pair.B, 0, psn))
	}
	var lines, saved bytes.Buffer
	save, err := NewSaver(Stdio, "", &saved, src.Live())
	if err != nil {
		t.Fatal(err)
	}
	d := &Dumper{Source: src, Save: save, JSON: true, Out: bufio.NewWriter(&lines), Limit: 3}
	if err := errors.Join(d.Run(t.Context()), save.Close()); err != nil {
		t.Fatal(err)
	}
	var records []record
	for dec := json.NewDecoder(&lines); dec.More(); {
		var r record
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if len(records) != 3 || records[0].Iface != pair.B.Iface || records[2].N != 3 {
		t.Errorf("records %+v, want 3 with interface %s", records, pair.B.Iface)
	}
	ng, err := pcapgo.NewNgReader(&saved, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if intf, err := ng.Interface(0); err != nil || intf.Name != pair.B.Iface {
		t.Errorf("Interface(0) = %q, %v, want %q", intf.Name, err, pair.B.Iface)
	}
	n := 0
	for ; err == nil; n++ {
		_, _, err = ng.ReadPacketData()
	}
	if n--; n != 3 {
		t.Errorf("%d frames saved, want 3", n)
	}
}

func TestInterfaceDown(t *testing.T) {
	pair := newPair(t)
	err := pair.B.Do(func() error {
		link, err := netlink.LinkByName(pair.B.Iface)
		if err != nil {
			return err
		}
		if err := netlink.LinkSetDown(link); err != nil {
			return err
		}
		want := "ip link set " + pair.B.Iface + " up"
		if _, err := Open(t.Context(), pair.B.Iface, nil); err == nil ||
			!strings.Contains(err.Error(), want) {
			return fmt.Errorf("Open() = %v, want an error with %q", err, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
