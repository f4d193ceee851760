package roce

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// Admit sees each request before Accept returns it, and decides how it is refused.
func TestAdmit(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	ignored := 0
	l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{
		Admit: func(r *Request) error {
			if !r.RemoteAddr().IsValid() || r.LocalAddr() != k.addr {
				t.Errorf("request from %v to %v", r.RemoteAddr(), r.LocalAddr())
			}
			switch word := r.PrivateData(); {
			case bytes.HasPrefix(word, []byte("good")):
				return nil
			case bytes.HasPrefix(word, []byte("full")):
				return &RejectError{Reason: RejectNoResources, PrivateData: []byte("later")}
			case bytes.HasPrefix(word, []byte("self")):
				return r.RejectWith(RejectUnsupported, nil)
			case bytes.HasPrefix(word, []byte("never")):
				ignored++
				return ErrIgnore
			}
			return errors.New("unknown")
		},
	})
	must(t, err)
	ctx := within(t)
	served := k.acceptOne(ctx, l)
	for word, want := range map[string]RejectReason{
		"full": RejectNoResources, "self": RejectUnsupported, "other": RejectConsumer,
	} {
		_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{PrivateData: []byte(word)})
		var no *RejectError
		if !errors.As(err, &no) || no.Reason != want {
			t.Errorf("%s: %v, want reason %v", word, err, want)
		}
		if want == RejectNoResources && !bytes.HasPrefix(no.PrivateData, []byte("later")) {
			t.Errorf("%s: private data %q", word, no.PrivateData)
		}
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := k.a.Dial(short, k.addr, k.a.qp,
		DialOptions{PrivateData: []byte("never")}); !errors.Is(
		err, context.DeadlineExceeded) {
		t.Errorf("ignored: %v", err)
	}
	if _, err := k.a.Dial(ctx, k.addr, k.a.qp,
		DialOptions{PrivateData: []byte("good")}); err != nil {
		t.Error(err)
	}
	must(t, <-served)
	if ignored != 1 {
		t.Errorf("%d requests were ignored, want 1", ignored)
	}
	waitCtx, stop := context.WithCancel(ctx)
	stop()
	if _, err := l.Accept(waitCtx); err == nil || !strings.Contains(err.Error(),
		"waiting for a connection request") {
		t.Errorf("Accept() = %v", err)
	}
}

// Requests from peers that a list excludes get no answer, whether the list is the device's or the
// listener's.
func TestPeerLists(t *testing.T) {
	all := netip.MustParsePrefix("::/0")
	for name, c := range map[string]struct {
		device, listener PeerList
		permitted        bool
	}{
		"none":            {permitted: true},
		"device denies":   {device: PeerList{Deny: []netip.Prefix{all}}},
		"listener denies": {listener: PeerList{Deny: []netip.Prefix{all}}},
		"listener allows": {listener: PeerList{Allow: []netip.Prefix{all}}, permitted: true},
		"device allows others": {
			device: PeerList{Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
		},
		"both": {PeerList{Allow: []netip.Prefix{all}}, PeerList{Deny: []netip.Prefix{all}}, false},
	} {
		k := newConnPair(t, rigConfig{opts: []Option{WithPeers(c.device)}})
		refuse := func(*Request) error { return errors.New("no") }
		o := ListenOptions{Peers: c.listener, Admit: refuse}
		addr := netip.AddrPortFrom(netip.Addr{}, testPort)
		l, err := k.b.Listen(addr, o)
		must(t, err)
		u, err := k.b.ListenUD(addr, o)
		must(t, err)
		limit, want := 30*time.Millisecond, context.DeadlineExceeded
		if c.permitted {
			limit, want = deadline, ErrRefused
		}
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		go l.Accept(ctx) // refuses all
		go u.Accept(ctx)
		_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
		_, err2 := k.a.ResolveUD(ctx, k.addr, nil)
		cancel()
		if !errors.Is(err, want) || !errors.Is(err2, want) {
			t.Errorf("%s: %v, %v; want %v", name, err, err2, want)
		}
		dropped := func() uint64 { return k.b.Counters().CM.DropPeer }
		if c.permitted {
			if dropped() != 0 {
				t.Errorf("%s: %d requests dropped", name, dropped())
			}
			continue
		}
		eventually(t, "a dropped request", func() bool { return dropped() > 0 })
		if k.b.Counters().GSISent != 0 {
			t.Errorf("%s: the device answered", name)
		}
	}
}

// A prefix that matches no address must not make a list weaker than its author believes, and the
// list cannot be changed later.
func TestPeerListsChecked(t *testing.T) {
	bad := PeerList{Deny: []netip.Prefix{{}}}
	link := newLink(t, loopback.Config{})
	if _, err := New(link.Port(0), WithPeers(bad)); !errors.Is(err, ErrInvalid) {
		t.Errorf("New: %v, want %v", err, ErrInvalid)
	}
	k := newConnPair(t, rigConfig{})
	if _, err := k.b.Listen(k.addr, ListenOptions{Peers: bad}); !errors.Is(err, ErrInvalid) {
		t.Errorf("Listen: %v, want %v", err, ErrInvalid)
	}
	list := []netip.Prefix{netip.PrefixFrom(netip.MustParseAddr("::ffff:10.77.0.0"), 120)}
	anyAddr := netip.AddrPortFrom(netip.Addr{}, testPort)
	l, err := k.b.Listen(anyAddr, ListenOptions{Peers: PeerList{Allow: list},
		Admit: func(*Request) error { return errors.New("no") }})
	must(t, err)
	list[0] = netip.MustParsePrefix("192.0.2.0/24")
	ctx := within(t)
	go l.Accept(ctx)
	addr := netip.AddrPortFrom(netip.MustParseAddr("10.77.0.2"), testPort)
	if _, err := k.a.Dial(ctx, addr, k.a.qp, DialOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Dial: %v, want %v", err, ErrRefused)
	}
}

// If Admit panics, and the program recovers, the peer gets an answer.
func TestAdmitPanics(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l, err := k.b.Listen(k.addr, ListenOptions{Admit: func(*Request) error { panic("test") }})
	must(t, err)
	ctx := within(t)
	recovered := make(chan any, 1)
	go func() {
		defer func() { recovered <- recover() }()
		l.Accept(ctx)
	}()
	if _, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Dial: %v, want %v", err, ErrRefused)
	}
	if r := <-recovered; r != "test" {
		t.Errorf("recovered %v", r)
	}
}

// madPacket returns a MAD to QP1 of d as the decoder delivers it.
func madPacket(t *testing.T, d *Device, mad []byte) *bth.Packet {
	t.Helper()
	b := make([]byte, 512)
	info, to := bth.UDSendOnly.Info(), d.Info()
	netLen := frame.PutHeaders(b, &frame.Address{
		SrcMAC: bth.MAC{2, 9}, DstMAC: to.MAC, HopLimit: 64, SrcPort: 0xc001,
		Src: bth.GIDFromAddr(netip.MustParseAddr("fd66::1")), Dst: d.GIDs()[0].GID,
	})
	bth.PutBTH(b[netLen:],
		&bth.BTHFields{Opcode: bth.UDSendOnly, PKey: bth.DefaultPKey, DestQP: bth.QPNGSI})
	bth.PutDETH(b[netLen+int(info.DETH):], bth.QKeyGSI, bth.QPNGSI)
	n := netLen + int(info.HeaderLen)
	n += copy(b[n:], mad) + bth.ICRCLen
	new(frame.Encoder).Finish(b[:n], netLen)
	p := new(bth.Packet)
	if r := new(frame.Decoder).Decode(b[:n], p); r != frame.ReasonOK {
		t.Fatalf("Decode() = %v", r)
	}
	return p
}

// Dropped MADs from addresses that are not known use no memory.
func TestDroppedMADsDoNotAllocate(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	denied := newConnPair(t, rigConfig{opts: []Option{
		WithPeers(PeerList{Deny: []netip.Prefix{netip.MustParsePrefix("fd66::/16")}})}})
	l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{Backlog: 1})
	must(t, err)
	defer l.Close()
	var rtu, rej cm.MAD
	(&cm.RTU{LocalID: 1, RemoteID: 2}).Encode(&rtu, 3)
	(&cm.REJ{LocalID: 1, RemoteID: 2}).Encode(&rej, 3)
	odd := bytes.Clone(newREQ(0))
	odd[1] = 4 // another class
	for _, c := range []struct {
		name string
		d    *Device
		mad  []byte
	}{
		{"RTU without connection", k.b.Device, rtu[:]},
		{"REJ without connection", k.b.Device, rej[:]},
		{"another class", k.b.Device, odd}, {"too short", k.b.Device, odd[:100]},
		{"REQ to a full backlog", k.b.Device, newREQ(0)},
		{"REQ of a denied peer", denied.b.Device, newREQ(0)},
	} {
		p := madPacket(t, c.d, c.mad)
		var allocs float64
		before, paths := c.d.Counters(), c.d.connState().paths
		must(t, c.d.do(func(now qp.Time) {
			n := byte(0)
			send := func() {
				n++
				p.Src[2], p.Src[3] = n, p.Src[3]+n // another address
				c.d.gsi.handle(now, p)
			}
			if c.name == "REQ to a full backlog" {
				send()
			}
			allocs = testing.AllocsPerRun(100, send)
		}))
		if allocs != 0 {
			t.Errorf("%s: %v allocations each", c.name, allocs)
		}
		after := c.d.Counters()
		if n := c.d.connState().paths; n > paths+1 {
			t.Errorf("%s: the number of paths grew from %d to %d", c.name, paths, n)
		}
		if after.GSIReceived-before.GSIReceived < 100 || after.GSISent != before.GSISent {
			t.Errorf("%s: %d received, %d answered", c.name, after.GSIReceived-before.GSIReceived,
				after.GSISent-before.GSISent)
		}
	}
}

// During a flood of requests, data moves at the same rate, established connections end properly,
// and the number of answers is limited.
func TestDataDuringFlood(t *testing.T) {
	took := func(flood int) (time.Duration, Counters) {
		link := newLink(t, loopback.Config{Virtual: true, Seed: 1, Ports: 3,
			Plan: loopback.Plan{Delay: 100 * time.Microsecond}})
		var e [2]*end
		for i := range e {
			e[i] = newEnd(t, newDevice(t, link, i, WithExpert(Expert{Clock: link.Now})),
				rigConfig{mem: 1 << 20})
		}
		connect(t, e[0].qp, e[1].qp)
		s := &rawPeer{port: link.Port(2), to: link.Port(1)}
		start, sent := link.Now(), 0
		var wcs [1]WC
		for i := range 50 {
			must(t, e[0].qp.PostSend(SendWR{Op: OpWrite, Flags: Signaled,
				SGEs: []SGE{e[0].mr.SGE(0, 1<<20)}, RemoteAddr: e[1].mr.Addr(),
				RKey: e[1].mr.RKey()}))
			for e[0].cq.Poll(wcs[:]) == 0 {
				for ; sent < int(int64(flood)*(link.Now()-start)/1e9); sent++ {
					src := netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x66, 4: byte(sent >> 8),
						5: byte(sent)})
					s.send(t, src, newREQ(sent))
				}
				advance(t, link, e[0].Device, e[1].Device)
			}
			if wcs[0].Status != Success {
				t.Fatalf("WRITE %d: %v", i, wcs[0].Status)
			}
		}
		return time.Duration(link.Now() - start), e[1].Counters()
	}
	alone, _ := took(0)
	flooded, c := took(4_000_000)
	if flooded > alone+alone/10 {
		t.Errorf("the WRITEs took %v during the flood, %v without", flooded, alone)
	}
	most := uint64(gsiRate.Total.Burst) + uint64(flooded.Seconds()*float64(gsiRate.Total.PerSecond)) + 1
	if c.GSISent > most || c.CM.DropRate == 0 {
		t.Errorf("%d requests: %d answers, at most %d; %d dropped", c.GSIReceived, c.GSISent, most,
			c.CM.DropRate)
	}
	t.Logf("%v alone, %v with %d requests, %d answers", alone, flooded, c.GSIReceived, c.GSISent)
}
