package roce

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// fakeMember is the port of a member of a node service, or the service itself.
type fakeMember struct {
	driver.Port
	slot  uint8
	ended atomic.Bool

	mu      sync.Mutex
	listens map[uint64]int
	taken   map[uint64]bool // service IDs of other programs
	wills   map[uint32][]byte

	started driver.Port
	forward func(p *bth.Packet) bool
}

func newFakeMember(port driver.Port, slot uint8) *fakeMember {
	return &fakeMember{Port: port, slot: slot, listens: map[uint64]int{}, taken: map[uint64]bool{},
		wills: map[uint32][]byte{}}
}

func (m *fakeMember) Unwrap() driver.Port { return m.Port }
func (m *fakeMember) Slot() uint8         { return m.slot }

func (m *fakeMember) SetLog(func(slog.Level, uint32, string, ...slog.Attr)) {}

func (m *fakeMember) Listen(id uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.taken[id] {
		return driver.ErrListening
	}
	m.listens[id]++
	return nil
}

func (m *fakeMember) Unlisten(id uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listens[id]--
}

func (m *fakeMember) listening(id cm.ServiceID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.listens[uint64(id)]
}

func (m *fakeMember) Will(key uint32, frame []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if frame == nil {
		delete(m.wills, key)
		return
	}
	m.wills[key] = append([]byte(nil), frame...)
}

func (m *fakeMember) Wait(d time.Duration) error {
	if m.ended.Load() {
		return driver.ErrServiceEnded
	}
	if err := m.Port.Wait(d); err != nil {
		return err
	}
	if m.ended.Load() {
		return driver.ErrServiceEnded
	}
	return nil
}

func (m *fakeMember) Start(port driver.Port) error { m.started = port; return nil }

func (m *fakeMember) Forward(p *bth.Packet) bool { return m.forward != nil && m.forward(p) }

// newMember returns an endpoint on the port of a member.
func newMember(t *testing.T, port driver.Port, slot uint8, opts ...Option) (*end, *fakeMember) {
	t.Helper()
	m := newFakeMember(port, slot)
	d, err := New(m, opts...)
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	return newEnd(t, d, rigConfig{}), m
}

// The numbers of a member's device have the slot in their top byte, and it can connect.
func TestMemberNumbers(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, _ := newMember(t, link.Port(0), 254)
	b, _ := newMember(t, link.Port(1), 1)
	ca, cb := dialAccept(t, a, b)
	for q, slot := range map[*QP]uint8{a.qp: 254, b.qp: 1, ca.QP(): 254, cb.QP(): 1} {
		if n := q.QPN(); uint8(n>>16) != slot {
			t.Errorf("QPN %v in slot %d", n, slot)
		}
	}
	for id, slot := range map[cm.CommID]uint8{ca.id.comm: 254, cb.id.comm: 1} {
		if uint8(id>>24) != slot {
			t.Errorf("communication ID %#x in slot %d", uint32(id), slot)
		}
	}
	for range 5 {
		q := newQP(t, b)
		if n := q.QPN(); uint8(n>>16) != 1 {
			t.Errorf("QPN %v in slot 1", n)
		}
	}
	must(t, ca.Close())
	must(t, cb.Close())
}

// A member deposits a disconnect request for each connection, and withdraws it when the connection
// ends.
func TestWills(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, ma := newMember(t, link.Port(0), 3)
	b, mb := newMember(t, link.Port(1), 4)
	ca, cb := dialAccept(t, a, b)
	for _, c := range []struct {
		m    *fakeMember
		conn *Conn
		peer cm.CommID
		qpn  QPN
	}{{ma, ca, cb.id.comm, cb.QP().QPN()}, {mb, cb, ca.id.comm, ca.QP().QPN()}} {
		var frames [][]byte
		eventually(t, "a will", func() bool {
			c.m.mu.Lock()
			defer c.m.mu.Unlock()
			frames = frames[:0]
			for _, f := range c.m.wills {
				frames = append(frames, f)
			}
			return len(frames) == 1 && c.m.wills[uint32(c.conn.id.comm)] != nil
		})
		var p bth.Packet
		var dreq cm.DREQ
		if r := new(frame.Decoder).Decode(frames[0], &p); r != frame.ReasonOK ||
			p.BTH.DestQP() != bth.QPNGSI || p.SrcPort != bth.Port || len(p.Payload) != cm.MADLen {
			t.Fatalf("Decode() = %v, packet %x", r, p.BTH)
		}
		mad, err := cm.ParseMAD(p.Payload)
		must(t, err)
		dreq.Decode(mad)
		if mad.Attribute() != cm.AttrDREQ || dreq.RemoteID != c.peer || dreq.RemoteQPN != c.qpn {
			t.Errorf("the will is %v %+v", mad.Attribute(), dreq)
		}
	}
	must(t, ca.Close())
	must(t, cb.Close())
	for _, m := range []*fakeMember{ma, mb} {
		eventually(t, "no will", func() bool {
			m.mu.Lock()
			defer m.mu.Unlock()
			return len(m.wills) == 0
		})
	}
}

// A member announces its listeners once for each port.
func TestMemberListens(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a, m := newMember(t, link.Port(0), 2)
	at := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port)
	}
	m.taken[uint64(cm.TCPService(7))] = true
	if _, err := a.Listen(at(7), ListenOptions{}); !errors.Is(err, ErrListening) {
		t.Errorf("Listen() = %v on another program's port, want ErrListening", err)
	}
	all, err := a.Listen(at(8), ListenOptions{})
	must(t, err)
	one, err := a.Listen(netip.AddrPortFrom(a.GIDs()[0].Addr, 8), ListenOptions{})
	must(t, err)
	if _, err := a.Listen(at(8), ListenOptions{}); !errors.Is(err, ErrListening) {
		t.Errorf("second Listen() = %v, want ErrListening", err)
	}
	datagrams, err := a.ListenUD(at(0), ListenOptions{})
	must(t, err)
	udp := cm.UDPService(datagrams.Addr().Port())
	if n, k := m.listening(cm.TCPService(8)), m.listening(udp); n != 1 || k != 1 {
		t.Errorf("announced %d and %d times, want 1 and 1", n, k)
	}
	must(t, all.Close())
	must(t, all.Close())
	if n := m.listening(cm.TCPService(8)); n != 1 {
		t.Errorf("announced %d times with a listener left, want 1", n)
	}
	must(t, one.Close())
	must(t, datagrams.Close())
	if n, k := m.listening(cm.TCPService(8)), m.listening(udp); n != 0 || k != 0 {
		t.Errorf("announced %d and %d times after Close, want 0 and 0", n, k)
	}
}

// When the service ends, all QPs are flushed, calls that wait return, the device is fatal, and its
// connections tell why they ended.
func TestServiceEnds(t *testing.T) {
	bothModes(t, func(t *testing.T, p Progress) {
		leakCheck(t)
		link := newLink(t, loopback.Config{})
		a := newEnd(t, newDevice(t, link, 0), rigConfig{})
		b, m := newMember(t, link.Port(1), 1, WithProgress(p))
		connect(t, a.qp, b.qp)
		_, conn := dialAccept(t, a, b)
		ctx, cancel := conn.Context(t.Context())
		defer cancel()
		unused := newQP(t, b)
		must(t, b.qp.PostRecv(RecvWR{ID: 5}))
		waited := make(chan error)
		idle, err := b.CreateCQ(1)
		must(t, err)
		go func() {
			_, err := idle.Wait(t.Context(), make([]WC, 1))
			waited <- err
		}()
		eventually(t, "caller of Wait", func() bool { return idle.waiters.Load() == 1 })
		m.ended.Store(true)
		m.Wake()
		if err := <-waited; !errors.Is(err, ErrServiceEnded) || errors.Is(err, ErrGone) {
			t.Errorf("Wait() = %v, want ErrServiceEnded", err)
		}
		if wc := poll(t, 1, b.cq)[0]; wc.ID != 5 || wc.Status != WRFlushErr {
			t.Errorf("completion %d, %v, want 5, %v", wc.ID, wc.Status, WRFlushErr)
		}
		if err := conn.Err(); !errors.Is(err, ErrServiceEnded) || errors.Is(err, ErrConnLost) {
			t.Errorf("Err() of a connection = %v, want ErrServiceEnded", err)
		}
		if err := context.Cause(ctx); !errors.Is(err, ErrServiceEnded) {
			t.Errorf("Cause() = %v, want ErrServiceEnded", err)
		}
		for _, q := range []*QP{b.qp, unused, conn.QP()} {
			if got := q.State(); got != StateErr {
				t.Errorf("state is %v, want %v", got, StateErr)
			}
		}
		for e := range b.Events() {
			if e.Kind == EventDeviceFatal {
				if !errors.Is(e.Err, ErrServiceEnded) {
					t.Errorf("event with %v, want ErrServiceEnded", e.Err)
				}
				break
			}
		}
	})
}

// The service's own device asks for each message to QP1 whether another program gets it.
func TestForward(t *testing.T) {
	link := newLink(t, loopback.Config{})
	host := newFakeMember(nil, 0)
	var asked atomic.Int32
	host.forward = func(p *bth.Packet) bool {
		if p.BTH.DestQP() != bth.QPNGSI {
			t.Errorf("Forward gets a packet to QPN %v", p.BTH.DestQP())
		}
		return asked.Add(1) == 1
	}
	d, err := New(link.Port(1), inside.Host(host).(Option))
	must(t, err)
	defer d.Close()
	b := newEnd(t, d, rigConfig{})
	if n := b.qp.QPN(); n > 0xffff {
		t.Errorf("QPN %v of the service's own device, want less than 0x10000", n)
	}
	a := newEnd(t, newDevice(t, link, 0), rigConfig{})
	ca, cb := dialAccept(t, a, b) // the peer retransmits the first request, which is taken
	if n := asked.Load(); n < 3 {
		t.Errorf("Forward was called for %d messages, want at least 3", n)
	}
	must(t, ca.Close())
	must(t, cb.Close())
}
