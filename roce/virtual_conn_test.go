package roce

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/cm"
)

// simulation is two devices in virtual time whose blocking calls work.
type simulation struct {
	*loopback.Sim
	link *loopback.Link
	ends [2]*end
	addr netip.AddrPort // of the second one
}

func simulate(t *testing.T, seed uint64, plan loopback.Plan, c rigConfig) *simulation {
	t.Helper()
	link := newLink(t, loopback.Config{Virtual: true, Seed: seed, Plan: plan})
	s := &simulation{Sim: loopback.NewSim(link), link: link,
		addr: netip.AddrPortFrom(link.Port(1).Addrs()[0].Addr(), testPort)}
	for i := range s.ends {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		s.ends[i] = newEnd(t, newDevice(t, link, i, WithExpert(Expert{Clock: link.Now,
			Wait: s.Wait, Rand: r.Uint64})), c)
		s.Add(s.ends[i].Device)
	}
	return s
}

// accept accepts one connection.
func (s *simulation) accept(l *Listener, o AcceptOptions) (*Conn, error) {
	r, err := l.Accept(context.Background())
	if err != nil {
		return nil, err
	}
	return r.Accept(context.Background(), s.ends[1].qp, o)
}

// Listen, Dial and Accept, messages, and the end of the connection work in virtual time over a bad
// link, and replay from the seed.
func TestConnectInVirtualTime(t *testing.T) {
	run := func(seed uint64) (hash uint64, took time.Duration) {
		s := simulate(t, seed, loopback.Plan{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1,
			Delay: 100 * time.Microsecond, Jitter: 50 * time.Microsecond}, rigConfig{})
		a, b := s.ends[0], s.ends[1]
		ctx, start := context.Background(), s.link.Now()
		l, err := b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
		must(t, err)
		var wcs [2][1]WC
		s.Go(func() {
			must(t, b.qp.PostRecv(RecvWR{SGEs: []SGE{b.mr.SGE(0, 100)}}))
			c, err := s.accept(l, AcceptOptions{})
			must(t, err)
			_, err = b.cq.Wait(ctx, wcs[1][:])
			must(t, err)
			must(t, s.Wait(ctx, func() bool { return c.Err() != nil }))
			if !errors.Is(c.Err(), ErrDisconnected) {
				t.Errorf("seed %d: Err() = %v", seed, c.Err())
			}
		})
		s.Go(func() {
			c, err := a.Dial(ctx, s.addr, a.qp, DialOptions{})
			must(t, err)
			must(t, a.qp.PostSend(SendWR{Op: OpSend, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(0, 50)}}))
			_, err = a.cq.Wait(ctx, wcs[0][:])
			must(t, err)
			must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 50)},
				RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			must(t, a.qp.Drain(ctx))
			must(t, c.Close())
		})
		if err := s.Run(time.Minute); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if wcs[0][0].Status != Success || wcs[1][0].Status != Success || wcs[1][0].ByteLen != 50 {
			t.Errorf("seed %d: %+v", seed, wcs)
		}
		return s.link.TraceHash(), time.Duration(s.link.Now() - start)
	}
	for seed := range uint64(5) {
		h1, t1 := run(seed)
		if h2, t2 := run(seed); h1 != h2 || t1 != t2 {
			t.Errorf("seed %d: %x after %v, then %x after %v", seed, h1, t1, h2, t2)
		}
	}
}

// ListenUD and ResolveUD work in virtual time.
func TestResolveUDInVirtualTime(t *testing.T) {
	s := simulate(t, 1, loopback.Plan{}, rigConfig{typ: UD})
	must(t, s.ends[1].qp.Activate(QKeyUDP))
	l, err := s.ends[1].ListenUD(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
	must(t, err)
	s.Go(func() {
		r, err := l.Accept(context.Background())
		must(t, err)
		must(t, r.AnswerUD(s.ends[1].qp, nil))
	})
	s.Go(func() {
		p, err := s.ends[0].ResolveUD(context.Background(), s.addr, nil)
		must(t, err)
		if p.QPN != s.ends[1].qp.QPN() {
			t.Errorf("QPN %v, want %v", p.QPN, s.ends[1].qp.QPN())
		}
	})
	must(t, s.Run(time.Minute))
}

// The times in which each side detects that its peer is gone, as ConnectOptions.KeepAlive documents
// them.
func TestDetectionTimes(t *testing.T) {
	for name, c := range map[string]struct {
		busy     bool
		o        ConnectOptions
		min, max time.Duration
	}{
		"idle":      {false, ConnectOptions{}, 4 * time.Second, 20 * time.Second},
		"with work": {true, ConnectOptions{}, 4 * time.Second, 5 * time.Second},
		"idle, 1 s": {false, ConnectOptions{KeepAlive: time.Second}, 4 * time.Second,
			6 * time.Second},
		"idle, fast": {false, ConnectOptions{KeepAlive: time.Second, Timeout: 14},
			500 * time.Millisecond, 2 * time.Second},
		"idle, few retries": {false, ConnectOptions{KeepAlive: time.Second, Retries: 1},
			time.Second, 3 * time.Second},
		"idle, no keepalive": {false, ConnectOptions{KeepAlive: -1}, 0, 0},
	} {
		for phase := range 3 { // of the cut, relative to the checks
			s := simulate(t, 1, loopback.Plan{}, rigConfig{})
			a := s.ends[0]
			l, err := s.ends[1].Listen(s.addr, ListenOptions{})
			must(t, err)
			s.Go(func() {
				_, err := s.accept(l, AcceptOptions{ConnectOptions: c.o})
				must(t, err)
			})
			s.Go(func() {
				conn, err := a.Dial(context.Background(), s.addr, a.qp,
					DialOptions{ConnectOptions: c.o})
				must(t, err)
				must(t, s.Sleep(100*time.Second+time.Duration(phase)*2300*time.Millisecond))
				if conn.Err() != nil {
					t.Errorf("%s: an idle connection ended: %v", name, conn.Err())
				}
				for i := range 2 {
					must(t, s.link.SetPlan(i, 1-i, loopback.Plan{Loss: 1}))
				}
				cut := s.link.Now()
				if c.busy {
					must(t, a.qp.PostSend(SendWR{Op: OpWrite, SGEs: []SGE{a.mr.SGE(0, 8)}}))
				}
				over := func() bool { return conn.Err() != nil || s.link.Now()-cut > 60e9 }
				if err := s.Wait(context.Background(), over); err != nil && c.max > 0 {
					t.Errorf("%s: %v", name, err)
				}
				took := time.Duration(s.link.Now() - cut)
				switch {
				case c.max == 0:
					if conn.Err() != nil {
						t.Errorf("%s: Err() = %v after %v", name, conn.Err(), took)
					}
				case took < c.min, took > c.max, !errors.Is(conn.Err(), ErrConnLost):
					t.Errorf("%s: Err() = %v after %v, want ErrConnLost after %v to %v", name,
						conn.Err(), took, c.min, c.max)
				}
			})
			if err := s.Run(time.Hour); err != nil && c.max > 0 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

// One forged REQ with short timeouts makes the device send at most three times its bytes to the
// spoofed host, and blocks Accept for at most 15 s, whatever it says about times.
func TestForgedREQOnTheWire(t *testing.T) {
	for _, exponent := range []uint8{12, 31} {
		link := newLink(t, loopback.Config{Virtual: true, Seed: 1, Ports: 3})
		sim := loopback.NewSim(link)
		b := newEnd(t, newDevice(t, link, 1, WithExpert(Expert{Clock: link.Now, Wait: sim.Wait})),
			rigConfig{})
		v := &silentHost{port: link.Port(2)}
		sim.Add(b.Device, v)
		l, err := b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{})
		must(t, err)
		s := &rawPeer{port: link.Port(2), to: link.Port(1)}
		var req cm.REQ
		var m cm.MAD
		copy(m[:], newREQ(1))
		req.Decode(&m)
		req.LocalTimeout, req.RemoteTimeout, req.MaxCMRetries = exponent, exponent, 15
		req.Encode(&m, 1)
		addrs := link.Port(2).Addrs()
		victim := addrs[len(addrs)-1].Addr()
		start := link.Now()
		sim.Go(func() {
			r, err := l.Accept(context.Background())
			if err == nil {
				_, err = r.Accept(context.Background(), b.qp, AcceptOptions{})
			}
			took := time.Duration(link.Now() - start)
			if !errors.Is(err, ErrNoAnswer) || took > 15*time.Second {
				t.Errorf("exponent %d: Accept() = %v after %v", exponent, err, took)
			}
			must(t, sim.Sleep(time.Minute)) // for late retransmissions
		})
		s.send(t, victim, m[:])
		must(t, sim.Run(time.Hour))
		const reqLen = 14 + 40 + 8 + 12 + 8 + cm.MADLen + 4 // over IPv6
		if v.frames == 0 || v.bytes > 3*reqLen {
			t.Errorf("exponent %d: %d frames with %d bytes for one of %d", exponent, v.frames,
				v.bytes, reqLen)
		}
	}
}

// silentHost receives frames and sends nothing.
type silentHost struct {
	port          *loopback.Port
	frames, bytes int
}

func (h *silentHost) Progress() int {
	var in [64]driver.Buf
	n := h.port.Receive(in[:])
	for _, f := range in[:n] {
		h.frames++
		h.bytes += len(f.B)
	}
	h.port.Release(in[:n])
	return n
}

func (h *silentHost) NextTimeout() (int64, bool) { return 0, false }

// TestResetAfterConn: a QP that was reset after a connection is connected again with QP.Connect.
// The end of the old connection, whose peer and connection manager may take long to forget it, does
// not concern the new one.
func TestResetAfterConn(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*Conn) error
		want error // of the old Conn
	}{
		{"Conn.Close", (*Conn).Close, ErrClosed},
		{"QP.Cancel", func(c *Conn) error { return c.QP().Cancel() }, ErrConnLost},
		{"none", func(*Conn) error { return nil }, ErrClosed},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := simulate(t, 1, loopback.Plan{Delay: time.Microsecond}, rigConfig{})
			a, b := s.ends[0], s.ends[1]
			next := newEnd(t, b.Device, rigConfig{}).qp
			ctx := context.Background()
			l, err := b.Listen(s.addr, ListenOptions{})
			must(t, err)
			s.Go(func() {
				_, err := s.accept(l, AcceptOptions{})
				must(t, err)
			})
			s.Go(func() {
				conn, err := a.Dial(ctx, s.addr, a.qp, DialOptions{})
				must(t, err)
				must(t, c.end(conn))
				must(t, a.qp.Modify(&Attr{State: StateReset}, AttrState))
				if !errors.Is(conn.Err(), c.want) {
					t.Errorf("Conn.Err() = %v after the reset, want %v", conn.Err(), c.want)
				}
				must(t, a.qp.Connect(ctx, next.Local(), ConnectOptions{KeepAlive: time.Second}))
				must(t, next.Connect(ctx, a.qp.Local(), ConnectOptions{}))
				end := s.link.Now() + int64(time.Minute)
				must(t, s.Wait(ctx, func() bool {
					return s.link.Now() >= end || a.qp.State() != StateRTS
				}))
				if a.qp.State() != StateRTS || a.Counters().KeepAlivesSent < 50 {
					t.Errorf("the new connection is in %v and sent %d keepalives in a minute",
						a.qp.State(), a.Counters().KeepAlivesSent)
				}
				_, err = a.Dial(ctx, s.addr, a.qp, DialOptions{})
				if !errors.Is(err, ErrInvalid) {
					t.Errorf("Dial with a used QP: %v, want %v", err, ErrInvalid)
				}
			})
			if err := s.Run(2 * time.Minute); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestDialWithClosedQP closes the QP when the peer's reply has come, before Dial takes it.
func TestDialWithClosedQP(t *testing.T) {
	s := simulate(t, 1, loopback.Plan{}, rigConfig{})
	a, ctx := s.ends[0], context.Background()
	l, err := s.ends[1].Listen(s.addr, ListenOptions{})
	must(t, err)
	s.Go(func() {
		must(t, s.Wait(ctx, func() bool { return a.qp.cmID != nil && a.qp.cmID.pending() }))
		must(t, a.qp.Close())
	})
	s.Go(func() {
		_, err := s.accept(l, AcceptOptions{})
		if !errors.Is(err, ErrRefused) {
			t.Errorf("Accept: %v, want %v", err, ErrRefused)
		}
	})
	s.Go(func() {
		if _, err := a.Dial(ctx, s.addr, a.qp, DialOptions{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Dial: %v, want %v", err, ErrClosed)
		}
	})
	if err := s.Run(time.Minute); err != nil {
		t.Error(err)
	}
}
