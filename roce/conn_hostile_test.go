package roce

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

// cancelREQ returns the REJ by which the sender of newREQ(i) cancels its request.
func cancelREQ(i int) []byte {
	j := cm.REJ{LocalID: cm.CommID(i + 1), Message: cm.AnswersOther, Reason: cm.ReasonTimeout,
		InfoLen: 8}
	binary.BigEndian.PutUint64(j.Info[:], uint64(i+1)) // its GUID
	var m cm.MAD
	j.Encode(&m, uint64(i+1))
	return m[:]
}

// Requests whose senders cancel them or stop waiting leave the listener's queue.
func TestCanceledRequests(t *testing.T) {
	k := newConnPair(t, rigConfig{link: loopback.Config{Ports: 3}})
	l, err := k.b.Listen(netip.AddrPortFrom(netip.Addr{}, testPort), ListenOptions{Backlog: 16})
	if err != nil {
		t.Fatal(err)
	}
	s := &rawPeer{port: k.link.Port(2), to: k.link.Port(1)}
	src := netip.MustParseAddr("fd77::bad")
	for i := range 64 {
		s.send(t, src, newREQ(i))
		if i%4 != 0 { // the others expire after 2 x 67 ms
			s.send(t, src, cancelREQ(i))
		}
	}
	eventually(t, "end of all requests", func() bool {
		return k.b.Counters().CM.Received[cm.AttrREJ.Index()] >= 48 && k.b.connState().ids == 0
	})
	if l.queue.pending() {
		t.Error("canceled requests wait for Accept")
	}
	ctx := within(t)
	served := k.acceptOne(ctx, l)
	_, err = k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
	if err := errors.Join(err, <-served); err != nil {
		t.Errorf("another peer: %v", err)
	}
}

// RemoteAddr returns the address in the IP header, not the one in the request (newREQ: fd77::9).
func TestRemoteAddrIsFromIPHeader(t *testing.T) {
	k := newConnPair(t, rigConfig{link: loopback.Config{Ports: 3}})
	l := k.listen(t)
	s := &rawPeer{port: k.link.Port(2), to: k.link.Port(1)}
	s.send(t, netip.MustParseAddr("fd77::bad"), newREQ(1))
	r, err := l.Accept(within(t))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.RemoteAddr(), netip.MustParseAddrPort("[fd77::bad]:9"); got != want {
		t.Errorf("RemoteAddr() = %v, want %v", got, want)
	}
	if got := r.Params().Source; got != netip.MustParseAddrPort("[fd77::9]:9") {
		t.Errorf("Params().Source = %v", got)
	}
}

// If the peer disconnects right after its REP, the error of Dial says so.
func TestPeerDisconnectsAtOnce(t *testing.T) {
	for name, c := range map[string]struct {
		then func(m *cm.MAD, a *end, id cm.CommID)
		want error
	}{
		"REJ": {func(m *cm.MAD, _ *end, id cm.CommID) {
			(&cm.REJ{LocalID: 77, RemoteID: id, Message: cm.AnswersOther,
				Reason: cm.ReasonConsumer}).Encode(m, 1)
		}, ErrRefused},
		"DREQ": {func(m *cm.MAD, a *end, id cm.CommID) {
			(&cm.DREQ{LocalID: 77, RemoteID: id, RemoteQPN: a.qp.QPN()}).Encode(m, 2)
		}, ErrDisconnected},
	} {
		t.Run(name, func(t *testing.T) {
			link := newLink(t, loopback.Config{})
			a := newEnd(t, newDevice(t, link, 0), rigConfig{})
			dialed := make(chan error, 1)
			go func() {
				_, err := a.Dial(within(t), netip.AddrPortFrom(link.Port(1).Addrs()[0].Addr(), 9),
					a.qp, DialOptions{})
				dialed <- err
			}()
			answered := false
			answer := func(now qp.Time) {
				g := a.gsi
				for id, d := range g.ids {
					var rep, then cm.MAD
					(&cm.REP{LocalID: 77, RemoteID: id, QPN: 99, GUID: 88,
						RNRRetry: 7}).Encode(&rep, 1)
					c.then(&then, a, id)
					for _, m := range []*cm.MAD{&rep, &then} {
						if err := g.cm.HandleMAD(cm.Time(now),
							cm.Addr{GIDPair: bth.GIDPair{Local: d.gids.Local,
								Remote: d.gids.Remote}, QPN: 1, PKey: bth.DefaultPKey},
							m[:]); err != nil {
							t.Error(err)
						}
					}
					g.dispatch(now)
					answered = true
				}
			}
			eventually(t, "request", func() bool {
				must(t, a.do(answer))
				return answered
			})
			if err := <-dialed; !errors.Is(err, c.want) || a.qp.State() != StateErr {
				t.Errorf("%v, want %v; the QP is in %v", err, c.want, a.qp.State())
			}
		})
	}
}

// If the peer replies with a QP that is connected already, Dial refuses the reply. The older
// connection ends because its QP does not answer (IBA 12.4.1).
func TestReplyWithConnectedQP(t *testing.T) {
	link := newLink(t, loopback.Config{})
	a := newEnd(t, newDevice(t, link, 0), rigConfig{})
	answered := map[cm.CommID]bool{}
	dial := func() (*Conn, error) {
		q, err := a.CreateQP(a.pd, QPConfig{SendCQ: a.cq})
		must(t, err)
		over := make(chan struct{})
		go func() {
			defer close(over)
			n := len(answered)
			eventually(t, "request", func() bool {
				must(t, a.do(func(now qp.Time) {
					g := a.gsi
					for id, d := range g.ids {
						if answered[id] {
							continue
						}
						answered[id] = true
						var rep cm.MAD
						(&cm.REP{LocalID: cm.CommID(len(answered)), RemoteID: id, QPN: 99, GUID: 88,
							RNRRetry: 7}).Encode(&rep, 1)
						if err := g.cm.HandleMAD(cm.Time(now),
							cm.Addr{GIDPair: bth.GIDPair{Local: d.gids.Local,
								Remote: d.gids.Remote}, QPN: 1, PKey: bth.DefaultPKey},
							rep[:]); err != nil {
							t.Error(err)
						}
						g.dispatch(now)
						return
					}
				}))
				return len(answered) > n
			})
		}()
		c, err := a.Dial(within(t), netip.AddrPortFrom(link.Port(1).Addrs()[0].Addr(), 9), q,
			DialOptions{ConnectOptions: ConnectOptions{Timeout: 10, KeepAlive: -1}})
		<-over
		return c, err
	}
	first, err := dial()
	must(t, err)
	if _, err := dial(); !errors.Is(err, ErrRefused) ||
		!strings.Contains(err.Error(), "of an older connection") {
		t.Errorf("reply with a connected QP: %v", err)
	}
	ends(t, first, ErrConnLost)
}

// An answer returns ErrRequestOver if the dialer has given up.
func TestLateAnswer(t *testing.T) {
	k := newConnPair(t, rigConfig{})
	l := k.listen(t)
	for name, answer := range map[string]func(r *Request) error{
		"Reject": func(r *Request) error { return r.Reject(nil) },
		"Accept": func(r *Request) error {
			_, err := r.Accept(within(t), k.b.qp, AcceptOptions{})
			return err
		},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		dialed := make(chan error, 1)
		go func() {
			_, err := k.a.Dial(ctx, k.addr, k.a.qp, DialOptions{})
			dialed <- err
		}()
		r, err := l.Accept(within(t))
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-dialed; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: Dial: %v", name, err)
		}
		waitUnused(t, k.b.Device)
		if err := answer(r); !errors.Is(err, ErrRequestOver) || k.b.qp.State() != StateInit {
			t.Errorf("%s: %v; the QP is in %v", name, err, k.b.qp.State())
		}
	}
}
