package ping

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// rig is a server and a client's device on the in-memory link; they meet over TCP on this host.
type rig struct {
	host   *Host
	client *roce.Device
	addr   string
	failed chan error
}

const budget = 64 << 20

func anyGID() *device.Flags { return &device.Flags{GIDIndex: -1} }

func newRig(t *testing.T, plan loopback.Plan) *rig {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{MTU: 1500, Seed: 1, Plan: plan})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{failed: make(chan error, 10)}
	if r.client, err = roce.New(link.Port(0), roce.WithProgress(roce.Manual)); err != nil {
		t.Fatal(err)
	}
	server, err := roce.New(link.Port(1))
	if err != nil {
		t.Fatal(err)
	}
	r.host = &Host{Dev: server, Flags: anyGID(), Budget: session.NewBudget(budget)}
	ln, err := exchange.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)
	srv := &exchange.Server{
		Services: map[string]exchange.Handler{Service: r.host.Serve},
		Log:      func(_ net.Addr, err error) { r.failed <- err },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-ended, r.client.Close(), server.Close()); err != nil {
			t.Error(err)
		}
		if _, err := r.host.Budget.Take(budget); err != nil {
			t.Errorf("memory was not given back: %v", err)
		}
	})
	return r
}

func (r *rig) connect(t *testing.T, bytes int) *link {
	t.Helper()
	l, err := connect(t.Context(), r.client, anyGID(), r.addr, Params{Bytes: bytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.close() })
	return l
}

// Pings of every size come back once each, in order, one at a time and all slots
// at once, also where packets are lost.
func TestEcho(t *testing.T) {
	for _, plan := range []loopback.Plan{{}, {Loss: 0.05}} {
		r := newRig(t, plan)
		for _, bytes := range []int{0, 1, 64, 1024, 5000, 100_000} {
			l := r.connect(t, bytes)
			var got []int
			l.replied = func(f flight, rtt time.Duration) {
				if rtt <= 0 {
					t.Errorf("round trip of %v", rtt)
				}
				got = append(got, f.seq)
			}
			sent := 0
			for range 4 {
				for _, burst := range []int{1, slots} {
					for range burst {
						if err := l.room(t.Context(), time.Now().Add(30*time.Second)); err != nil {
							t.Fatal(err)
						}
						if err := l.ping(sent); err != nil {
							t.Fatal(err)
						}
						sent++
					}
					if err := l.await(t.Context(), time.Now().Add(30*time.Second), true); err != nil {
						t.Fatal(err)
					}
				}
			}
			for i, seq := range got {
				if seq != i {
					t.Fatalf("replies came as %v", got)
				}
			}
			if len(got) != sent {
				t.Errorf("loss %v, %d bytes: %d of %d pings came back", plan.Loss, bytes, len(got), sent)
			}
			l.close()
		}
	}
}

// The limits are the server's own affair.
func TestServerRefuses(t *testing.T) {
	r := newRig(t, loopback.Plan{})
	for _, bytes := range []int{-1, maxBytes + 1} {
		conn, err := exchange.Dial(t.Context(), r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := conn.Send(t.Context(), &exchange.Message{Kind: exchange.KindRequest, Service: Service, Params: exchange.Encode(Params{bytes})}); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Receive(t.Context(), exchange.KindAccept); !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), "1 MiB") {
			t.Errorf("pings of %d bytes: %v", bytes, err)
		}
		<-r.failed
	}
}

// A client that sends more than it asked for loses its connection; the next one is served.
func TestOversizePing(t *testing.T) {
	r := newRig(t, loopback.Plan{})
	l := r.connect(t, 64)
	big, err := l.s.QPs[0], error(nil)
	if err = big.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{l.s.MR.SGE(0, 65)}}); err != nil {
		t.Fatal(err)
	}
	err = l.await(t.Context(), time.Now().Add(10*time.Second), false)
	if !errors.Is(err, errBroken) {
		t.Errorf("got %v, want errBroken", err)
	}
	if err := <-r.failed; err == nil {
		t.Error("the server noticed nothing")
	}
	l.close()
	n := r.connect(t, 64)
	n.replied = func(flight, time.Duration) {}
	if err := n.ping(1); err != nil {
		t.Fatal(err)
	}
	if err := n.await(t.Context(), time.Now().Add(10*time.Second), true); err != nil || len(n.sent) > 0 {
		t.Errorf("the next client: %v, %d pings unanswered", err, len(n.sent))
	}
}

// A reply that differs from what was sent is told, not counted.
func TestCorruptReply(t *testing.T) {
	r := newRig(t, loopback.Plan{})
	l := r.connect(t, 64)
	l.replied = func(flight, time.Duration) { t.Error("a corrupt reply was counted") }
	if err := l.ping(1); err != nil {
		t.Fatal(err)
	}
	l.s.CQ.Poll(nil)              // the ping leaves as it is
	l.s.MR.Bytes()[l.out(0)] ^= 1 // what is compared with differs from now on
	deadline := time.Now().Add(time.Second)
	if err := l.await(t.Context(), deadline, true); !errors.Is(err, errData) {
		t.Errorf("got %v, want errData", err)
	}
}
