package roce

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp/veth"
)

var testGroups = []string{"239.1.1.1", "ff0e::77"}

// sendGroup sends text to a group from e.
func sendGroup(t *testing.T, e *end, group netip.Addr, text string) {
	t.Helper()
	ah, err := e.CreateAH(within(t), AHAttr{Remote: addrGID(group)})
	must(t, err)
	defer ah.Close()
	copy(e.mr.Bytes(), text)
	must(t, e.qp.PostSend(SendWR{ID: 9, Op: OpSendImm, Flags: Signaled, Imm: 5,
		SGEs: []SGE{e.mr.SGE(0, len(text))}, AH: ah, RemoteQPN: QPNMulticast, RemoteQKey: QKeyUDP}))
	pollOK(t, 9, WCSend, e.cq)
}

func addrGID(a netip.Addr) GID { return newGIDEntry(0, a).GID }

// receiveText polls for the datagram of a receive and returns it without the GRH.
func receiveText(t *testing.T, id uint64, e *end, others ...*CQ) (WC, string) {
	t.Helper()
	wc := pollOK(t, id, WCRecv, e.cq, others...)
	return wc, string(e.mr.Bytes()[1000*int(id)+GRHLen : 1000*int(id)+int(wc.ByteLen)])
}

func postRecvs(t *testing.T, e *end, q *QP, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		must(t, q.PostRecv(RecvWR{ID: id, SGEs: []SGE{e.mr.SGE(1000*int(id), 1000)}}))
	}
}

func activeUD(t *testing.T, e *end) *QP {
	t.Helper()
	q, err := e.CreateQP(e.pd, QPConfig{Type: UD, SendCQ: e.cq})
	must(t, err)
	must(t, q.Activate(QKeyUDP))
	return q
}

// A message to a group reaches all attached QPs on all devices and no others. A receiver can reply
// with an address handle that it creates from the completion.
func TestMulticast(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		link := newLink(t, loopback.Config{Ports: 3})
		var e [3]*end
		for i := range e {
			c := rigConfig{typ: UD, opts: []Option{WithProgress(p)}}
			e[i] = newEnd(t, newDevice(t, link, i, c.opts...), c)
			must(t, e[i].qp.Activate(QKeyUDP))
		}
		second := activeUD(t, e[1])
		for _, g := range testGroups {
			group := netip.MustParseAddr(g)
			postRecvs(t, e[0], e[0].qp, 3)
			postRecvs(t, e[1], e[1].qp, 1)
			postRecvs(t, e[1], second, 2)
			postRecvs(t, e[2], e[2].qp, 1)
			for _, q := range []*QP{e[0].qp, e[1].qp, e[1].qp, second} {
				must(t, q.AttachMulticast(group))
			}
			if !slices.Contains(link.Port(1).Groups(), group) {
				t.Error("the port is not a member of the group")
			}
			before := e[2].Counters()
			sendGroup(t, e[0], group, "hello all")
			var wc WC
			for range 2 {
				got := poll(t, 1, e[1].cq, e[0].cq)[0]
				if text := string(e[1].mr.Bytes()[1000*got.ID+GRHLen : 1000*got.ID+uint64(got.ByteLen)]); got.Status != Success || text != "hello all" || got.Imm != 5 {
					t.Errorf("%+v %q", got, text)
				}
				if got.ID == 1 {
					wc = got
				}
			}
			eventually(t, "drop", func() bool {
				e[2].Progress()
				return e[2].Counters().DropNotOurs > before.DropNotOurs
			})
			if n := e[2].Counters().DropNotOurs - before.DropNotOurs; n != 1 {
				t.Errorf("a device that is not a member dropped %d packets, want 1", n)
			}

			ah, err := e[1].CreateAHFromWC(within(t), &wc, e[1].mr.Bytes()[1000:])
			must(t, err)
			copy(e[1].mr.Bytes(), "hello you")
			must(t, e[1].qp.PostSend(SendWR{ID: 8, Op: OpSend, Flags: Signaled,
				SGEs: []SGE{e[1].mr.SGE(0, 9)}, AH: ah, RemoteQPN: wc.SrcQP, RemoteQKey: QKeyUDP}))
			pollOK(t, 8, WCSend, e[1].cq)
			if _, text := receiveText(t, 3, e[0], e[1].cq); text != "hello you" {
				t.Errorf("reply %q", text)
			}
			must(t, ah.Close())

			must(t, e[1].qp.DetachMulticast(group))
			if !slices.Contains(link.Port(1).Groups(), group) {
				t.Error("the port left the group while a QP is attached")
			}
			if err := e[1].qp.DetachMulticast(group); !errors.Is(err, ErrNotAttached) {
				t.Errorf("detached twice: %v", err)
			}
			must(t, second.DetachMulticast(group))
			if len(link.Port(1).Groups()) != 0 {
				t.Error("the port is still a member of a group")
			}
			must(t, e[2].qp.Close())
			e[2].qp = activeUD(t, e[2])
		}
		if got := link.Port(0).Groups(); len(got) != 2 {
			t.Errorf("the port is a member of %v, want 2 groups", got)
		}
		must(t, e[0].qp.Close())
		if got := link.Port(0).Groups(); len(got) != 0 {
			t.Errorf("after QP.Close: the port is a member of %v", got)
		}
	})
}

// A device on a wrapped port joins groups on the inner port.
func TestMulticastThroughWrappers(t *testing.T) {
	group := netip.MustParseAddr("239.1.1.1")
	for name, wrap := range map[string]func(driver.Port) driver.Port{
		"Inject": func(p driver.Port) driver.Port { return loopback.Inject(p, 1, loopback.Plan{}) },
		"Tee":    func(p driver.Port) driver.Port { return loopback.Tee(p, io.Discard) },
		"own wrapper": func(p driver.Port) driver.Port {
			return &byQueue{Port: p, frames: map[uint64]int{}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			link := newLink(t, loopback.Config{})
			d, err := New(wrap(link.Port(0)))
			must(t, err)
			defer d.Close()
			e := newEnd(t, d, rigConfig{typ: UD})
			must(t, e.qp.AttachMulticast(group))
			if got := link.Port(0).Groups(); !slices.Contains(got, group) {
				t.Errorf("the port is a member of %v, want %v", got, group)
			}
			must(t, e.qp.DetachMulticast(group))
			if got := link.Port(0).Groups(); len(got) != 0 {
				t.Errorf("after DetachMulticast the port is a member of %v", got)
			}
		})
	}
}

// Errors of AttachMulticast and CreateAHFromWC.
func TestMulticastRefused(t *testing.T) {
	a, b := newRig(t, rigConfig{typ: UD})
	if err := a.qp.AttachMulticast(netip.MustParseAddr("10.77.0.2")); !errors.Is(err,
		ErrNotMulticast) {
		t.Errorf("unicast address: %v", err)
	}
	group := netip.MustParseAddr("239.1.1.1")
	must(t, a.net.(*loopback.Port).JoinGroup(group)) // so that the device's call fails
	if err := a.qp.AttachMulticast(group); !errors.Is(err, loopback.ErrConfig) {
		t.Errorf("JoinGroup fails: %v", err)
	}
	if a.Counters(); len(a.members) != 0 || len(a.joined) != 0 {
		t.Error("state is left after an error of JoinGroup")
	}
	rc, err := b.CreateQP(b.pd, QPConfig{SendCQ: b.cq})
	must(t, err)
	if err := rc.AttachMulticast(group); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("RC QP: %v", err)
	}
	good := WC{Flags: WCGRH}
	for name, c := range map[string]struct {
		wc  WC
		grh []byte
	}{
		"no GRH": {WC{}, make([]byte, GRHLen)},
		"failed": {WC{Flags: WCGRH, Status: WRFlushErr}, make([]byte, GRHLen)},
		"short":  {good, make([]byte, GRHLen-1)},
		"zeros":  {good, make([]byte, GRHLen)},
		"from a group": {good,
			append(bytes.Repeat([]byte{0}, 20),
				append([]byte{0x45, 11: 0, 12: 239, 15: 1}, 10, 77, 0, 1)...)},
	} {
		if _, err := b.CreateAHFromWC(context.Background(), &c.wc, c.grh); !errors.Is(err,
			ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(t, b.qp.Close())
	if err := b.qp.AttachMulticast(group); !errors.Is(err, ErrClosed) {
		t.Errorf("closed QP: %v", err)
	}
}

// An AH of another device, whose path has the addresses of that device, is refused.
func TestForeignAH(t *testing.T) {
	a, b := newRig(t, rigConfig{typ: UD})
	ah, err := b.CreateAH(within(t), AHAttr{Remote: a.qp.Local().GID})
	must(t, err)
	wr := SendWR{Op: OpSend, SGEs: []SGE{a.mr.SGE(0, 8)}, AH: ah, RemoteQPN: 5, RemoteQKey: 0x1234}
	if err := a.qp.PostSend(wr); !errors.Is(err, ErrForeign) {
		t.Errorf("PostSend with an AH of another device: %v, want %v", err, ErrForeign)
	}
	wr.SGEs[0] = b.mr.SGE(0, 8)
	must(t, b.qp.PostSend(wr))
}

// On a veth pair, the kernel is a member of the group while a QP is attached, and packets arrive.
func TestMulticastVeth(t *testing.T) {
	pair := newVeth(t, veth.Options{})
	c := rigConfig{typ: UD}
	a, b := openEnd(t, &pair.A, XDPOptions{}, c), openEnd(t, &pair.B, XDPOptions{}, c)
	for _, e := range []*end{a, b} {
		must(t, e.qp.Activate(QKeyUDP))
	}
	// The kernel lists IPv4 groups as a number in host byte order, and IPv6 groups as bytes.
	lists := map[string]string{"/proc/thread-self/net/igmp": "010101EF",
		"/proc/thread-self/net/igmp6": "ff0e0000000000000000000000000077"}
	members := func() (n int) {
		must(t, pair.B.Do(func() error {
			for file, entry := range lists {
				text, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				n += strings.Count(string(text), entry)
			}
			return nil
		}))
		return n
	}
	for _, g := range testGroups {
		must(t, b.qp.AttachMulticast(netip.MustParseAddr(g)))
	}
	if n := members(); n != 2 {
		t.Errorf("the kernel is a member of %d groups, want 2", n)
	}
	for _, g := range testGroups {
		postRecvs(t, b, b.qp, 1)
		sendGroup(t, a, netip.MustParseAddr(g), "hello "+g)
		wc, text := receiveText(t, 1, b)
		if text != "hello "+g {
			t.Errorf("%q", text)
		}
		ah, err := b.CreateAHFromWC(within(t), &wc, b.mr.Bytes()[1000:])
		must(t, err)
		postRecvs(t, a, a.qp, 2)
		copy(b.mr.Bytes(), "thanks")
		must(t, b.qp.PostSend(SendWR{ID: 7, Op: OpSend, Flags: Signaled,
			SGEs: []SGE{b.mr.SGE(0, 6)}, AH: ah, RemoteQPN: wc.SrcQP, RemoteQKey: QKeyUDP}))
		pollOK(t, 7, WCSend, b.cq)
		if _, text := receiveText(t, 2, a); text != "thanks" {
			t.Errorf("reply %q", text)
		}
		must(t, ah.Close())
	}
	must(t, b.qp.Close())
	if n := members(); n != 0 {
		t.Errorf("after QP.Close: the kernel is a member of %d groups, want 0", n)
	}
}

// Captured messages of mckey over rxe are received, and messages to the same group look like them.
func TestMulticastAsMckey(t *testing.T) {
	link := newLink(t, loopback.Config{})
	e := newEnd(t, newDevice(t, link, 1), rigConfig{typ: UD})
	must(t, e.qp.Activate(QKeyUDP))
	group := netip.MustParseAddr(testGroups[0])
	must(t, e.qp.AttachMulticast(group))
	wire := link.Port(0)
	frames := bthtest.Frames(t, "ud_multicast_mckey.pcap")
	for i, f := range frames {
		id := uint64(i + 1)
		postRecvs(t, e, e.qp, id)
		var buf [1]driver.Buf
		if wire.Alloc(buf[:]) != 1 {
			t.Fatal("no transmit buffer")
		}
		buf[0].B = buf[0].B[:copy(buf[0].B, f)]
		if _, err := wire.Send(buf[:]); err != nil {
			t.Fatal(err)
		}
		wc, text := receiveText(t, id, e)
		if wc.Flags&WCWithImm == 0 || wc.SrcQP != 0x3a || len(text) != 100 {
			t.Errorf("%+v, %d bytes", wc, len(text))
		}
		ah, err := e.CreateAHFromWC(within(t), &wc, e.mr.Bytes()[1000*id:])
		must(t, err)
		if ah.Remote().Addr() != wire.Addrs()[1].Addr() {
			t.Errorf("Remote() = %v", ah.Remote())
		}
		must(t, ah.Close())
	}
	sendGroup(t, e, group, string(make([]byte, 100)))
	var buf [1]driver.Buf
	eventually(t, "message", func() bool { return wire.Receive(buf[:]) == 1 })
	ours, theirs := buf[0].B, frames[0]
	if len(ours) != len(theirs) {
		t.Fatalf("%d bytes, rxe sends %d", len(ours), len(theirs))
	}
	for name, at := range map[string][2]int{"MAC": {0, 6}, "EtherType to length": {12, 18},
		"TTL and protocol": {22, 24}, "group": {30, 34},
		"UDP port": {36, 38}, "BTH": {42, 50}, "Q_Key": {54, 58}} {
		if !bytes.Equal(ours[at[0]:at[1]], theirs[at[0]:at[1]]) {
			t.Errorf("%s: %x, rxe sends %x", name, ours[at[0]:at[1]], theirs[at[0]:at[1]])
		}
	}
	wire.Release(buf[:])
}
