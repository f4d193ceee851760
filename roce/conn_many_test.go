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

// left is what a device holds of connections.
type left struct{ qps, talks, held, looked, ways, listeners int }

func (d *Device) left() (l left) {
	d.ctl.Lock()
	defer d.ctl.Unlock()
	_ = d.do(func(qp.Time) {
		g := d.gsi
		l = left{talks: len(g.conns), ways: len(g.ways), listeners: len(g.listeners)}
		for _, e := range g.ways {
			l.held += e.held
			l.looked += e.looked
		}
	})
	l.qps = len(d.qps)
	return l
}

// settled waits until nothing is left of connections but the rig's QP and what the ring remembers.
func settled(t *testing.T, devs ...*Device) {
	t.Helper()
	for _, d := range devs {
		var l left
		for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
			for _, all := range devs {
				all.Progress()
			}
			if l = d.left(); l.qps <= 1 && l.talks == 0 && l.held == 0 && l.looked == 0 && l.ways <= maxLearnt {
				break
			}
			if time.Now().After(end) {
				t.Errorf("left behind: %+v", l)
				break
			}
		}
	}
}

// Thousands dial at once, from as many goroutines, and go: half of them decently, the others by closing their QP. Nothing of
// them stays.
func TestManyConnections(t *testing.T) {
	n := 2000
	if raceEnabled || testing.Short() {
		n = 300
	}
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		k := newTalkers(t, rigConfig{opts: []Option{WithProgress(p)}, link: loopback.Config{Queue: 8192, TxBufs: 4096}})
		l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{Backlog: 2 * n})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		newQP := func(e *end) *QP {
			q, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
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
				dialed.Wait() // all of them are there at a time
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
		settled(t, k.a.Device, k.b.Device)
		if got := k.b.left().listeners; got != 0 {
			t.Errorf("%d listeners are left", got)
		}
	})
}

// await waits for the end of a connection, and drives a device with Manual progress meanwhile.
func await(ctx context.Context, e *end, c *Conn) {
	for ctx.Err() == nil {
		select {
		case <-c.Done():
			return
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
			e.Progress()
		}
	}
}

// stranger is a raw Port that speaks to QP1 of a device.
type stranger struct {
	port *loopback.Port
	to   *loopback.Port
	enc  frame.Encoder
}

// say sends payload to QP1 in the name of src, and drops what came.
func (s *stranger) say(t *testing.T, src netip.Addr, payload []byte) {
	t.Helper()
	var in [64]driver.Buf
	s.port.Release(in[:s.port.Receive(in[:])])
	var buf [1]driver.Buf
	for s.port.Alloc(buf[:]) == 0 {
		time.Sleep(100 * time.Microsecond)
	}
	b := buf[0].B
	addrs := s.to.Addrs()
	netLen := frame.PutHeaders(b, &frame.Address{
		SrcMAC: s.port.Info().MAC, DstMAC: s.to.Info().MAC, HopLimit: 64, SrcPort: 0xc001,
		Src: bth.GIDFromAddr(src), Dst: bth.GIDFromAddr(addrs[len(addrs)-1].Addr()),
	})
	info := bth.UDSendOnly.Info()
	bth.PutBTH(b[netLen:], &bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: bth.QPNGSI})
	bth.PutDETH(b[netLen+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
	n := netLen + int(info.HeaderLen)
	n += copy(b[n:], payload)
	buf[0].B = b[:n+bth.ICRCLen]
	s.enc.Finish(buf[0].B, netLen)
	if _, err := s.port.Send(buf[:]); err != nil {
		t.Fatal(err)
	}
}

// wish is a REQ for the test's service by a peer that never goes on.
func wish(i int) []byte {
	r := cm.REQ{
		LocalID: cm.CommID(i + 1), Service: cm.TCPService(testPort), GUID: cm.GUID(i + 1), QPN: QPN(i + 2), PKey: bth.DefaultPKey, MTU: MTU(1024).Enum(),
		RemoteTimeout: 14, LocalTimeout: 14, MaxCMRetries: 1,
	}
	h := cm.IPCMHeader{Src: netip.MustParseAddrPort("[fd77::9]:9"), Dst: netip.MustParseAddr("fd77::2")}
	h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
	var m cm.MAD
	r.Encode(&m, uint64(i+1))
	return m[:]
}

// A flood of requests, from one address or from many, is bounded and counted, and an honest peer gets its connection.
func TestFloodOfRequests(t *testing.T) {
	const flood = 6000
	for name, src := range map[string]func(i int) netip.Addr{
		"one address": func(int) netip.Addr { return netip.MustParseAddr("fd77::bad") },
		"many addresses": func(i int) netip.Addr {
			return netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x66, 14: byte(i >> 8), 15: byte(i)})
		},
	} {
		t.Run(name, func(t *testing.T) {
			k := newTalkers(t, rigConfig{link: loopback.Config{Ports: 3}})
			l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{Backlog: 64})
			if err != nil {
				t.Fatal(err)
			}
			s := &stranger{port: k.link.Port(2), to: k.link.Port(1)}
			for i := range flood {
				s.say(t, src(i), wish(i))
			}
			for i := 0; k.b.Counters().CM.Received[0] < flood/2; i++ { // the port's own queue may lose some: then more
				s.say(t, src(i%flood), wish(i%flood))
				if i%100 == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			if got := k.b.left(); got.talks > 64 || got.ways > maxLearnt+64 {
				t.Errorf("held for strangers: %+v", got)
			}
			c := k.b.Counters()
			if c.Get("cm_drop_backlog")+c.Get("cm_drop_source") == 0 {
				t.Error("drops are not counted")
			}
			ctx := within(t)
			served := make(chan error, 1)
			go func() { // an application that takes what comes
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
				t.Errorf("the honest peer: %v", err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// What is no message of the connection manager is counted under its name, and answered by nothing.
func TestMalformedMADs(t *testing.T) {
	k := newTalkers(t, rigConfig{link: loopback.Config{Ports: 3}})
	s := &stranger{port: k.link.Port(2), to: k.link.Port(1)}
	src := netip.MustParseAddr("fd77::3")
	edit := func(at int, v byte) []byte { b := wish(0); b[at] = v; return b }
	for _, c := range []struct {
		name    string
		payload []byte
	}{
		{"cm_bad_length", wish(0)[:252]}, {"cm_bad_length", append(wish(0), 0, 0, 0, 0)}, {"cm_bad_length", nil},
		{"cm_bad_header", edit(0, 9)}, {"cm_bad_header", edit(3, 0x81)},
		{"cm_bad_class", edit(1, 4)},
		{"cm_bad_attribute", edit(17, 0xff)},
		{"cm_malformed", func() []byte { b := wish(0); binary.BigEndian.PutUint32(b[24:], 0); return b }()}, // communication ID 0
	} {
		before := k.b.Counters()
		s.say(t, src, c.payload)
		for end := time.Now().Add(deadline); k.b.Counters().GSIReceived == before.GSIReceived && time.Now().Before(end); {
			time.Sleep(100 * time.Microsecond)
		}
		after := k.b.Counters()
		if after.Get(c.name) != before.Get(c.name)+1 || after.GSISent != before.GSISent {
			t.Errorf("%s: counted %d times; %d answers", c.name, after.Get(c.name)-before.Get(c.name), after.GSISent-before.GSISent)
		}
	}
	s.say(t, src, wish(0)) // well-formed, but nobody listens
	for end := time.Now().Add(deadline); k.b.Counters().CM.Sent[cm.AttrREJ.Index()] == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no REJ")
		}
	}
}

// moved is a network whose neighbours have got another MAC.
type moved struct {
	*loopback.Port
	changed chan struct{}
	mu      sync.Mutex
	mac     bth.MAC
}

func (m *moved) Changed() <-chan struct{} { return m.changed }

func (m *moved) Resolve(ctx context.Context, src, dst netip.Addr) (driver.Hop, error) {
	h, err := m.Port.Resolve(ctx, src, dst)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.mac != (bth.MAC{}) {
		h.MAC = m.mac
	}
	return h, err
}

// The way that QP1 takes to a connection's peer follows the neighbour, as the QP's path does.
func TestWaysFollowTheNeighbour(t *testing.T) {
	link := newLink(t, loopback.Config{})
	n := &moved{Port: link.Port(0), changed: make(chan struct{}, 1)}
	k := talkers{link: link, a: newEnd(t, newDevice(t, link, 0, WithExpert(Expert{Network: n})), rigConfig{}), b: newEnd(t, newDevice(t, link, 1), rigConfig{})}
	addrs := link.Port(1).Addrs()
	k.addr = netip.AddrPortFrom(addrs[len(addrs)-1].Addr(), testPort)
	a, _ := k.meet(t)
	want := bth.MAC{2, 0, 0, 0, 0, 99}
	n.mu.Lock()
	n.mac = want
	n.mu.Unlock()
	n.changed <- struct{}{}
	follows := func() (ok bool) {
		_ = k.a.do(func(qp.Time) {
			e := k.a.gsi.ways[a.talk.gids]
			ok = e != nil && e.path.Address().DstMAC == want
		})
		return ok
	}
	for end := time.Now().Add(deadline); !follows(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the way does not follow")
		}
	}
	if at, err := a.QP().Query(); err != nil || at.Path.Address().DstMAC != want {
		t.Errorf("the QP's path does not follow (%v)", err)
	}
	// The peer's packets do not undo it: what was looked up counts.
	_ = k.a.do(func(qp.Time) {
		k.a.gsi.learnWay(&bth.Packet{Src: a.talk.gids.Remote, Dst: a.talk.gids.Local, SrcMAC: link.Port(1).Info().MAC})
	})
	if !follows() {
		t.Error("a packet changed a way that was looked up")
	}
	if err := a.Abort(); !errors.Is(a.Err(), ErrClosed) || err != nil {
		t.Errorf("%v, %v", err, a.Err())
	}
}
