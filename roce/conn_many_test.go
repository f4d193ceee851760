package roce

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// connState is what a device keeps for connections.
type connState struct{ qps, ids, users, resolved, paths, listeners int }

func (d *Device) connState() (s connState) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	_ = d.do(func(qp.Time) {
		g := d.gsi
		s = connState{ids: len(g.ids), paths: len(g.paths.entries), listeners: len(g.listeners)}
		for _, e := range g.paths.entries {
			s.users += e.users
			s.resolved += e.resolved
		}
	})
	s.qps = len(d.qps)
	return s
}

// waitUnused waits until the devices keep nothing of connections except the QP of the test and
// unused paths.
func waitUnused(t *testing.T, devs ...*Device) {
	t.Helper()
	for _, d := range devs {
		eventually(t, "end of all connections", func() bool {
			for _, all := range devs {
				all.Progress()
			}
			s := d.connState()
			return s.qps <= 1 && s.ids == 0 && s.users == 0 && s.resolved == 0 &&
				s.paths <= maxUnusedPaths
		})
	}
}

// Thousands of goroutines dial at once. Half of them close the Conn, the others only the QP.
// Nothing is left afterwards.
func TestManyConnections(t *testing.T) {
	n := 2000
	if raceEnabled || testing.Short() {
		n = 300
	}
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		k := newConnPair(t, rigConfig{opts: []Option{WithProgress(p)},
			link: loopback.Config{Queue: 8192, TxBufs: 4096}})
		l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort),
			ListenOptions{Backlog: 2 * n})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		newQP := func(e *end) *QP {
			q, err := e.CreateQP(e.pd,
				QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
			if err != nil {
				t.Error(err)
			}
			return q
		}
		var all sync.WaitGroup
		fail := func(what string, err error) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
				cancel()
			}
		}
		for range 4 {
			all.Go(func() {
				for range n / 4 {
					r, err := l.Accept(ctx)
					if err != nil {
						fail("Accept", err)
						return
					}
					all.Go(func() {
						q := newQP(k.b)
						c, err := r.Accept(ctx, q, AcceptOptions{})
						fail("Request.Accept", err)
						if err == nil {
							await(ctx, k.b, c)
							fail("Close", c.Close())
						}
						fail("Close", q.Close())
					})
				}
			})
		}
		var dialed sync.WaitGroup
		dialed.Add(n)
		for i := range n {
			all.Go(func() {
				q := newQP(k.a)
				c, err := k.a.Dial(ctx, k.addr, q, DialOptions{})
				fail("Dial", err)
				dialed.Done()
				dialed.Wait() // all connections exist at the same time
				if err == nil && i%2 == 0 {
					fail("Close", c.Close())
				}
				fail("Close", q.Close())
			})
		}
		all.Wait()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		waitUnused(t, k.a.Device, k.b.Device)
		if got := k.b.connState().listeners; got != 0 {
			t.Errorf("%d listeners, want 0", got)
		}
	})
}

// await waits for the end of a connection, and drives a device with Manual progress meanwhile.
func await(ctx context.Context, e *end, c *Conn) {
	progress := time.NewTicker(time.Millisecond)
	defer progress.Stop()
	for ctx.Err() == nil {
		select {
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		case <-progress.C:
			e.Progress()
		}
	}
}

// rawPeer sends packets to QP1 of a device by a raw port.
type rawPeer struct {
	port *loopback.Port
	to   *loopback.Port
	enc  frame.Encoder
}

// send sends payload to QP1 with source address src, and drops received frames.
func (s *rawPeer) send(t *testing.T, src netip.Addr, payload []byte) {
	t.Helper()
	var in [64]driver.Buf
	s.port.Release(in[:s.port.Receive(in[:])])
	var buf [1]driver.Buf
	eventually(t, "transmit buffer", func() bool { return s.port.Alloc(buf[:]) == 1 })
	b := buf[0].B
	addrs := s.to.Addrs()
	netLen := frame.PutHeaders(b, &frame.Address{
		SrcMAC: s.port.Info().MAC, DstMAC: s.to.Info().MAC, HopLimit: 64, SrcPort: 0xc001,
		Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(addrs[len(addrs)-1].Addr()),
	})
	info := bth.UDSendOnly.Info()
	bth.PutBTH(b[netLen:],
		&bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: bth.QPNGSI})
	bth.PutDETH(b[netLen+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
	n := netLen + int(info.HeaderLen)
	n += copy(b[n:], payload)
	buf[0].B = b[:n+bth.ICRCLen]
	s.enc.Finish(buf[0].B, netLen)
	if _, err := s.port.Send(buf[:]); err != nil {
		t.Fatal(err)
	}
}

// newREQ returns a REQ for the test's service from peer i, which does not continue.
func newREQ(i int) []byte {
	r := cm.REQ{
		LocalID: cm.CommID(i + 1), Service: cm.TCPService(testPort), GUID: cm.GUID(i + 1),
		QPN: QPN(i + 2), PKey: bth.DefaultPKey, MTU: MTU(1024).Enum(),
		RemoteTimeout: 14, LocalTimeout: 14, MaxCMRetries: 1,
	}
	h := cm.IPCMHeader{Src: netip.MustParseAddrPort("[fd77::9]:9"),
		Dst: netip.MustParseAddr("fd77::2")}
	h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
	var m cm.MAD
	r.Encode(&m, uint64(i+1))
	return m[:]
}

// A flood of requests from one or many addresses uses limited memory and is counted. Another peer
// can still connect.
func TestFloodOfRequests(t *testing.T) {
	const flood = 6000
	for name, src := range map[string]func(i int) netip.Addr{
		"one address": func(int) netip.Addr { return netip.MustParseAddr("fd77::bad") },
		"many addresses": func(i int) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x66, 14: byte(i >> 8), 15: byte(i)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newConnPair(t, rigConfig{link: loopback.Config{Ports: 3}})
			l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort),
				ListenOptions{Backlog: 64})
			if err != nil {
				t.Fatal(err)
			}
			s := &rawPeer{port: k.link.Port(2), to: k.link.Port(1)}
			for i := range flood {
				s.send(t, src(i), newREQ(i))
			}
			for i := 0; k.b.Counters().CM.Received[0] < flood/2; i++ { // the port may lose some
				s.send(t, src(i%flood), newREQ(i%flood))
			}
			if got := k.b.connState(); got.ids > 64 || got.paths > maxUnusedPaths+64 {
				t.Errorf("after the flood: %+v", got)
			}
			c := k.b.Counters()
			if c.Get("cm_drop_backlog")+c.Get("cm_drop_source") == 0 {
				t.Error("no drop was counted")
			}
			ctx := within(t)
			served := make(chan error, 1)
			go func() { // refuses all requests of the flood
				for {
					r, err := l.Accept(ctx)
					if err == nil && r.Params().QPN != k.a.qp.QPN() {
						_ = r.Reject(nil)
						continue
					}
					if err == nil {
						_, err = r.Accept(ctx, k.b.qp, AcceptOptions{})
					}
					served <- err
					return
				}
			}()
			_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
			if err := errors.Join(err, <-served); err != nil {
				t.Errorf("another peer: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Malformed MADs are counted by kind and not answered.
func TestMalformedMADs(t *testing.T) {
	k := newConnPair(t, rigConfig{link: loopback.Config{Ports: 3}})
	s := &rawPeer{port: k.link.Port(2), to: k.link.Port(1)}
	src := netip.MustParseAddr("fd77::3")
	zeroID := newREQ(0)
	binary.BigEndian.PutUint32(zeroID[24:], 0)
	edit := func(at int, v byte) []byte { b := newREQ(0); b[at] = v; return b }
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"cm_bad_length", newREQ(0)[:252]}, {"cm_bad_length", append(newREQ(0), 0, 0, 0, 0)},
		{"cm_bad_length", nil},
		{"cm_bad_header", edit(0, 9)}, {"cm_bad_header", edit(3, 0x81)},
		{"cm_bad_class", edit(1, 4)},
		{"cm_bad_attribute", edit(17, 0xff)},
		{"cm_malformed", zeroID},
	} {
		before := k.b.Counters()
		s.send(t, src, c.payload)
		eventually(t, c.name,
			func() bool { return k.b.Counters().GSIReceived > before.GSIReceived })
		after := k.b.Counters()
		if after.Get(c.name) != before.Get(c.name)+1 || after.GSISent != before.GSISent {
			t.Errorf("%s: counted %d times, %d MADs sent; want 1, 0", c.name,
				after.Get(c.name)-before.Get(c.name), after.GSISent-before.GSISent)
		}
	}
	s.send(t, src, newREQ(0)) // well-formed, but there is no listener
	eventually(t, "REJ", func() bool { return k.b.Counters().CM.Sent[cm.AttrREJ.Index()] > 0 })
}

// The path of MADs to a connected peer follows a change of the neighbor's MAC address, like the
// QP's path.
func TestMADPathFollowsNeighbor(t *testing.T) {
	link := newLink(t, loopback.Config{})
	n := &changingNet{Network: link.Port(0), changed: make(chan struct{}, 1)}
	k := connPair{
		link: link, a: newEnd(t, newDevice(t, link, 0, WithExpert(Expert{Network: n})),
			rigConfig{}),
		b: newEnd(t, newDevice(t, link, 1), rigConfig{}),
	}
	addrs := link.Port(1).Addrs()
	k.addr = netip.AddrPortFrom(addrs[len(addrs)-1].Addr(), testPort)
	a, _ := k.meet(t)
	want := bth.MAC{2, 0, 0, 0, 0, 99}
	n.change(func() { n.mac = want })
	current := func() (ok bool) {
		_ = k.a.do(func(qp.Time) {
			p := k.a.gsi.paths.find(a.id.gids)
			ok = p != nil && p.Address().DstMAC == want
		})
		return ok
	}
	eventually(t, "new path of MADs", current)
	if at, err := a.QP().Query(); err != nil || at.Path.Address().DstMAC != want {
		t.Errorf("the path of the QP has not changed (%v)", err)
	}
	// Packets of the peer do not change a resolved path.
	_ = k.a.do(func(qp.Time) {
		p := &bth.Packet{Src: a.id.gids.Remote, Dst: a.id.gids.Local,
			SrcMAC: link.Port(1).Info().MAC}
		k.a.gsi.paths.learn(p, k.a.Info().MAC)
	})
	if !current() {
		t.Error("a packet changed a resolved path")
	}
	if err := a.Abort(); !errors.Is(a.Err(), ErrClosed) || err != nil {
		t.Errorf("Abort() = %v, Err() = %v", err, a.Err())
	}
}
