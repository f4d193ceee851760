package roce

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
)

// TestWrappedPort runs a device on a port that drops frames, wrapped in one that records them.
func TestWrappedPort(t *testing.T) {
	link := newLink(t, loopback.Config{})
	var pcap bytes.Buffer
	faulty := loopback.Inject(link.Port(0), 1, loopback.Plan{Loss: 0.1, Reorder: 0.05})
	d, err := New(loopback.Tee(faulty, &pcap))
	must(t, err)
	a, b := newEnd(t, d, rigConfig{}), newEnd(t, newDevice(t, link, 1), rigConfig{})
	connect(t, a.qp, b.qp)
	conversation(t, a, b)
	must(t, d.Close())
	if c := d.Counters(); pcap.Len() < int(c.TxBytes) {
		t.Errorf("%d bytes recorded, want at least %d", pcap.Len(), c.TxBytes)
	}
}

// plainPort is a port that does not implement Network.
type plainPort struct{ driver.Port }

func TestNewRefuses(t *testing.T) {
	leakCheck(t)
	port := newLink(t, loopback.Config{}).Port(0)
	if _, err := New(plainPort{port}); !errors.Is(err, ErrNoNetwork) {
		t.Errorf("port without Network: %v", err)
	}
	if _, err := port.Send(nil); !errors.Is(err, loopback.ErrClosed) {
		t.Errorf("Send on the port after New failed: %v", err)
	}
	if _, err := New(newLink(t, loopback.Config{MTU: 256}).Port(0)); !errors.Is(err, ErrMTU) {
		t.Errorf("MTU 256: %v", err)
	}
	if _, err := New(newLink(t, loopback.Config{}).Port(0),
		WithExpert(Expert{CPU: new(1000)})); !errors.Is(err, unix.EINVAL) {
		t.Errorf("CPU 1000: %v", err)
	}
	if _, err := New(newLink(t, loopback.Config{}).Port(0),
		WithExpert(Expert{MaxQP: -1})); err == nil {
		t.Error("MaxQP -1 is accepted")
	}
}

func TestLimits(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0,
		WithExpert(Expert{MaxQP: 1, MaxMR: 1, MaxPD: 1, CPU: new(0), Spin: time.Millisecond}))
	e := newEnd(t, d, rigConfig{})
	if _, err := d.CreateQP(e.pd, QPConfig{SendCQ: e.cq}); !errors.Is(err, ErrTooManyQPs) {
		t.Errorf("second QP: %v", err)
	}
	if _, err := e.pd.AllocMR(8, LocalWrite); err == nil {
		t.Error("a second region is accepted")
	}
	if _, err := d.AllocPD(); err == nil {
		t.Error("a second PD is accepted")
	}
	if _, err := e.pd.AllocMR(0, LocalWrite); !errors.Is(err, ErrInvalid) {
		t.Errorf("region of 0 bytes: %v", err)
	}
	if _, err := d.CreateCQ(0); !errors.Is(err, ErrInvalidDepth) {
		t.Errorf("CQ of 0: %v", err)
	}
	five := 5
	if _, err := d.CreateQP(e.pd, QPConfig{SendCQ: e.cq, GIDIndex: &five}); !errors.Is(err,
		ErrNoGID) {
		t.Errorf("GID index 5: %v", err)
	}
	// Failed calls hold no references.
	must(t, e.qp.Close())
	must(t, e.mr.Close())
	must(t, e.pd.Close())
	must(t, e.cq.Close())
}

// TestAllocMR: the memory is aligned to a page and zeroed; WithIOVA and ZeroBased set the address.
func TestAllocMR(t *testing.T) {
	e := newEnd(t, newDevice(t, newLink(t, loopback.Config{}), 0), rigConfig{})
	for _, c := range []struct {
		access Access
		opts   []MROption
		addr   uint64
	}{
		{LocalWrite, []MROption{WithIOVA(0x1000)}, 0x1000},
		{LocalWrite | ZeroBased, nil, 0},
		{LocalWrite | ZeroBased, []MROption{WithIOVA(0x1000)}, 0},
	} {
		m, err := e.pd.AllocMR(10000, c.access, c.opts...)
		must(t, err)
		if m.Addr() != c.addr || m.Len() != 10000 || m.PD() != e.pd ||
			!bytes.Equal(m.Bytes(), make([]byte, 10000)) {
			t.Errorf("%+v: address %#x, %d bytes, or the memory is not zero", c, m.Addr(), m.Len())
		}
		if g := m.SGE(16, 8); g.Addr != c.addr+16 || g.Length != 8 || g.LKey != m.LKey() {
			t.Errorf("SGE %+v", g)
		}
		must(t, m.Close())
	}
	if m := e.mr; m.Addr()%4096 != 0 {
		t.Errorf("address %#x is not aligned to a page", m.Addr())
	}
}

// TestPortChanges changes the link state and the MTU of a running device.
func TestPortChanges(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, b := newEnd(t, newDevice(t, link, 0), rigConfig{}), newEnd(t, newDevice(t, link, 1),
		rigConfig{})
	connect(t, a.qp, b.qp)
	link.Port(0).SetUp(false)
	nextEvent(t, a.Device, EventPortErr)
	if a.Info().Up {
		t.Error("Info().Up = true after the link went down")
	}
	link.Port(0).SetUp(true)
	nextEvent(t, a.Device, EventPortActive)
	conversation(t, a, b)
	must(t, link.Port(0).SetMTU(1500))
	nextEvent(t, a.Device, EventMTUChange)
	if i := a.Info(); i.ActiveMTU != 1024 || a.qp.Local().MTU != 1024 {
		t.Errorf("%+v", i)
	}
	q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
	must(t, err)
	must(t, q.Connect(context.Background(), b.qp.Local(), ConnectOptions{}))
	if at, err := q.Query(); err != nil || at.PathMTU != 1024 {
		t.Errorf("path MTU of a QP connected after the change: %d (%v), want 1024", at.PathMTU, err)
	}
}

// notePort is a port whose note changes.
type notePort struct {
	*loopback.Port
	note atomic.Pointer[string]
}

func (p *notePort) Info() driver.Info {
	info := p.Port.Info()
	info.Note = *p.note.Load()
	return info
}

// Advice that the port gives while the device is open is an event.
func TestPortNote(t *testing.T) {
	p := &notePort{Port: newLink(t, loopback.Config{}).Port(0)}
	p.note.Store(new(string))
	d, err := New(p)
	must(t, err)
	defer d.Close()
	const text = "a firewall drops packets"
	p.note.Store(new(text))
	p.SetUp(false)
	nextEvent(t, d, EventPortErr)
	if e := nextEvent(t, d, EventPortNote); e.Detail != text || d.Info().Note != text {
		t.Errorf("event %+v and note %q, want %q", e, d.Info().Note, text)
	}
}

// TestEventsAreBounded: without a reader events are counted and dropped, and nothing blocks.
func TestEventsAreBounded(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0)
	for range maxEvents + 7 {
		d.emit(Event{Kind: EventGIDChange})
	}
	if c := d.Counters(); c.EventsDropped != 7 {
		t.Errorf("EventsDropped = %d, want 7", c.EventsDropped)
	}
	must(t, d.Close())
	d.emit(Event{Kind: EventGIDChange}) // must not panic
	n := 0
	for range d.Events() {
		n++
	}
	if n != maxEvents {
		t.Errorf("%d events, want %d", n, maxEvents)
	}
}

// TestVerbsSteps moves QPs from RESET to RTS with Modify, then to SQD and back.
func TestVerbsSteps(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	gid := a.GIDs()[0]
	for _, pair := range [][2]*end{{a, b}, {b, a}} {
		me, peer := pair[0], pair[1]
		must(t, me.qp.Modify(&Attr{State: StateReset}, AttrState))
		path, mtu, err := me.ResolvePath(context.Background(), gid.Index, peer.GIDs()[0].GID,
			PathOptions{TrafficClass: 8})
		must(t, err)
		for _, s := range []transition{
			{Attr{State: StateInit, PKey: DefaultPKey,
				Access: RemoteWrite | RemoteRead | RemoteAtomic},
				AttrState | AttrPKey | AttrAccess},
			{Attr{State: StateRTR, Path: *path, PathMTU: mtu, DestQPN: peer.qp.QPN(),
				RQPSN: 0xfffffe, MaxDestRdAtomic: 4, MinRNRTimer: 12},
				AttrState | AttrPath | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer},
			{Attr{State: StateRTS, SQPSN: 0xfffffe, Timeout: 14, RetryCnt: 7, RNRRetry: 7,
				MaxRdAtomic: 4},
				AttrState | AttrSQPSN | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic},
		} {
			must(t, me.qp.Modify(&s.attr, s.mask))
		}
	}
	conversation(t, a, b) // the PSNs wrap around
	must(t, a.qp.Modify(&Attr{State: StateSQD}, AttrState))
	if e := nextEvent(t, a.Device, EventSQDrained); e.QP != a.qp {
		t.Error("the event has another QP")
	}
	must(t, a.qp.Modify(&Attr{State: StateRTS}, AttrState))
	conversation(t, a, b)
	if err := a.qp.Modify(&Attr{State: StateInit}, AttrState); !errors.Is(err, ErrQPState) {
		t.Errorf("RTS to INIT: %v", err)
	}
}

// TestConnectOptions: 0 is the default, a negative number is 0.
func TestConnectOptions(t *testing.T) {
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	for _, c := range []struct {
		o    ConnectOptions
		want Attr
	}{
		{ConnectOptions{}, Attr{Timeout: defaultTimeout, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12,
			MaxRdAtomic: 16, MaxDestRdAtomic: 16, PathMTU: 4096}},
		{ConnectOptions{Timeout: -1, Retries: -1, RNRRetries: -1, MinRNRTimer: -1, MaxRdAtomic: -1,
			MaxDestRdAtomic: -1, MTU: 512}, Attr{PathMTU: 512}},
		{ConnectOptions{Timeout: 3, Retries: 2, RNRRetries: 1, MinRNRTimer: 31, MaxRdAtomic: 1,
			MaxDestRdAtomic: 2},
			Attr{Timeout: 3, RetryCnt: 2, RNRRetry: 1, MinRNRTimer: 31, MaxRdAtomic: 1,
				MaxDestRdAtomic: 2, PathMTU: 4096}},
	} {
		q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
		must(t, err)
		c.o.TrafficClass, c.o.HopLimit, c.o.SourcePort = 0x20, 7, 0xc123
		must(t, q.Connect(context.Background(), b.qp.Local(), c.o))
		got, err := q.Query()
		must(t, err)
		var h [bth.MaxNetHeader]byte
		got.Path.Put(h[:])
		if h[15] != 0x22 || // with ECT(0)
			h[22] != 7 || h[34] != 0xc1 || h[35] != 0x23 {
			t.Errorf("IPv4 and UDP headers %x", h[14:42])
		}
		got = Attr{Timeout: got.Timeout, RetryCnt: got.RetryCnt, RNRRetry: got.RNRRetry,
			MinRNRTimer: got.MinRNRTimer,
			MaxRdAtomic: got.MaxRdAtomic, MaxDestRdAtomic: got.MaxDestRdAtomic,
			PathMTU: got.PathMTU}
		if got != c.want {
			t.Errorf("%+v: attributes %+v, want %+v", c.o, got, c.want)
		}
	}
	q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
	must(t, err)
	if err := q.Connect(context.Background(), b.qp.Local(),
		ConnectOptions{Timeout: 32}); !errors.Is(err, ErrInvalidAttr) {
		t.Errorf("timeout exponent 32: %v", err)
	}
}

// TestFamilies connects IPv6 GIDs, and fails to connect GIDs of different IP versions.
func TestFamilies(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	six := -1
	for _, e := range a.GIDs() {
		if e.Kind == GIDIPv6 {
			six = e.Index
		}
	}
	qa, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq, GIDIndex: &six})
	must(t, err)
	qb, err := b.CreateQP(b.pd, QPConfig{SendCQ: b.cq, GIDIndex: &six})
	must(t, err)
	if err := qa.Connect(context.Background(), b.qp.Local(), ConnectOptions{}); !errors.Is(err,
		ErrFamily) {
		t.Errorf("IPv6 to IPv4: %v", err)
	}
	connect(t, qa, qb)
	a.qp, b.qp = qa, qb
	conversation(t, a, b)
}

// TestProgressWithAuto: Progress does nothing with Auto progress.
func TestProgressWithAuto(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()}))
	if n := a.Progress(); n != 0 {
		t.Errorf("Progress() = %d, want 0", n)
	}
	must(t, a.qp.Drain(context.Background()))
}

// TestPinnedThread: the progress goroutine runs on Expert.CPU, and its thread is not reused for
// other goroutines.
func TestPinnedThread(t *testing.T) {
	d := newDevice(t, newLink(t, loopback.Config{}), 0, WithExpert(Expert{CPU: new(0)}))
	var set unix.CPUSet
	var err error
	must(t, d.do(func(qp.Time) { err = unix.SchedGetaffinity(0, &set) }))
	must(t, err)
	if set.Count() != 1 || !set.IsSet(0) {
		t.Errorf("affinity of the progress thread: %v", set)
	}
	must(t, d.Close())
	if runtime.NumCPU() > 1 {
		must(t, unix.SchedGetaffinity(0, &set))
		if set.Count() == 1 {
			t.Error("the thread of the test is pinned")
		}
	}
}

// TestConnectToMulticast: a QP cannot connect to a multicast GID.
func TestConnectToMulticast(t *testing.T) {
	a, b := newRig(t, rigConfig{})
	q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
	must(t, err)
	e := b.qp.Local()
	copy(e.GID[:], netip.MustParseAddr("ff02::1").AsSlice())
	if err := q.Connect(context.Background(), e, ConnectOptions{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("multicast: %v", err)
	}
}

// A device cannot send to one of its own addresses, and says so at once.
func TestDeviceCannotSendToItself(t *testing.T) {
	link := newLink(t, loopback.Config{})
	e := newEnd(t, newDevice(t, link, 0), rigConfig{})
	other, err := e.CreateQP(e.pd, QPConfig{SendCQ: e.cq})
	must(t, err)
	l, err := e.Listen(netip.AddrPort{}, ListenOptions{})
	must(t, err)
	defer l.Close()
	for _, g := range e.GIDs() {
		addr := netip.AddrPortFrom(g.Addr, l.Addr().Port())
		_, dial := e.Dial(within(t), addr, e.qp, DialOptions{})
		_, ah := e.CreateAH(within(t), AHAttr{Remote: g.GID})
		_, resolve := e.ResolveUD(within(t), addr, nil)
		peer := other.Local()
		peer.GID = g.GID
		for call, err := range map[string]error{
			"Dial": dial, "CreateAH": ah, "ResolveUD": resolve,
			"Connect": e.qp.Connect(within(t), peer, ConnectOptions{}),
		} {
			if !errors.Is(err, ErrUnreachable) ||
				!strings.Contains(err.Error(), "cannot send to itself") {
				t.Errorf("%s to %v, its own address: %v", call, g.Addr, err)
			}
		}
	}
}
