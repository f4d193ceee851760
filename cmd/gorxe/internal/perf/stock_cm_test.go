package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

const (
	cmPort     = perftest.DefaultPort
	maxTestQPs = 24
)

// newCMRig is newRig of two ends that meet by rdma_cm, over one IP version.
func newCMRig(t *testing.T, v6 bool) *rig {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{flags: anyGID(), rows: make(chan *Row, 64), failed: make(chan error, 10)}
	var devs [2]*roce.Device
	for i := range devs {
		if devs[i], err = roce.New(link.Port(i), roce.WithExpert(roce.Expert{MaxQP: maxTestQPs})); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range link.Port(1).Addrs() {
		if a.Addr().Is4() != v6 && !a.Addr().IsLinkLocalUnicast() {
			r.cm = netip.AddrPortFrom(a.Addr(), cmPort)
		}
	}
	r.client, r.link = devs[0], link
	r.host = &Host{
		Dev: devs[1], Flags: &device.Flags{GIDIndex: -1}, Budget: session.NewBudget(64 << 20),
		Finished: func(_ *Params, _ *session.Session, row *Row) { r.rows <- row },
	}
	l, err := r.host.Dev.Listen(netip.AddrPortFrom(netip.Addr{}, cmPort), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.free = r.room(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- r.host.ServeCM(ctx, l, func(_ netip.AddrPort, err error) {
			if err != nil && ctx.Err() == nil {
				r.failed <- err
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("ServeCM: %v", err)
		}
		for _, d := range devs {
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	return r
}

// -R: every operation, over both IP versions.
func TestStockCM(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newCMRig(t, v6)
		for i, args := range []string{
			"write-bw -s 3000 -n 200", "send-bw -q 8 -n 600 -s 100", "read-bw -q 2 -n 50", "atomic-bw -n 100", "write-lat -n 200", "send-lat -n 200",
			"read-lat -n 50", "atomic-lat -n 50",
		} {
			t.Run(fmt.Sprintf("v6=%v/%s", v6, args), func(t *testing.T) {
				p, runs, err := parse(t, strings.Fields(args))
				if err != nil {
					t.Fatal(err)
				}
				if r.host.Want = nil; i%2 == 0 {
					r.host.Want = p
				}
				r.drain()
				row := r.measureStock(t, p, stockOptions{}, runs...)
				checkRow(t, p, runs[0], row)
				checkServed(t, r, p, runs[0], row)
				r.idle(t)
			})
		}
		r.noneLeft(t)
	}
}

// room is how many queue pairs the server's device still has.
func (r *rig) room(t *testing.T) int {
	t.Helper()
	pd, err := r.host.Dev.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := r.host.Dev.CreateCQ(1)
	if err != nil {
		t.Fatal(err)
	}
	var qps []*roce.QP
	for {
		qp, err := r.host.Dev.CreateQP(pd, roce.QPConfig{SendCQ: cq, SendDepth: 1, RecvDepth: 1})
		if err != nil {
			break
		}
		qps = append(qps, qp)
	}
	for _, qp := range qps {
		err = errors.Join(err, qp.Close())
	}
	if err := errors.Join(err, cq.Close(), pd.Close()); err != nil {
		t.Error(err)
	}
	return len(qps)
}

// noneLeft: all queue pairs that there were are gone, and their memory is free.
func (r *rig) noneLeft(t *testing.T) {
	t.Helper()
	r.idle(t)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := r.room(t)
		if n == r.free {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d queue pairs are left", r.free-n)
		}
	}
}

// Clients that go at any point of the meeting, or speak something else, cost the server nothing in the end.
func TestHostileCM(t *testing.T) {
	r := newCMRig(t, false)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	hello := func(v string) []byte { return append([]byte(v), make([]byte, 16-len(v))...) }
	blank := make([]byte, 56)
	start := [][]byte{hello("6.06"), {0, 0, 16, 0}, {0, 0, 0, 64}, {'5', 0}}
	for _, c := range []struct {
		name string
		says [][]byte
		want error
		text string
	}{
		{"nothing", nil, perftest.ErrGone, ""},
		{"another protocol", [][]byte{[]byte("GET / HTTP/1.1")}, perftest.ErrGarbage, `"GET / HTTP/1.1"`},
		{"half a page", [][]byte{make([]byte, 4000)}, perftest.ErrGarbage, "more than"},
		{"too old", [][]byte{hello("5.33")}, perftest.ErrVersion, `"5.33"`},
		{"gone after the MTU", start, perftest.ErrGone, ""},
		{"a report for a key", append(start[:4:4], make([]byte, 7)), perftest.ErrGarbage, "7 bytes"},
		{"gone before its queue pairs", append(start[:4:4], blank), perftest.ErrGone, ""},
		{"a queue pair that it did not connect", append(start[:4:4], blank, blank, append([]byte{0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 9}, make([]byte, 45)...)), perftest.ErrProtocol, "0x900"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := newMailbox(r.client, mailQuiet)
			if err != nil {
				t.Fatal(err)
			}
			if m.conn, err = r.client.Dial(ctx, r.cm, m.qp, roce.DialOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, b := range c.says {
				if len(b) > mailBytes {
					err = m.qp.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{m.mr.SGE(0, (mailSlots+1)*mailBytes)}})
				} else if err = m.Send(ctx, b); err == nil && len(c.says) > 1 {
					_, err = m.Receive(ctx)
				}
				if err != nil {
					break // the server has had enough
				}
			}
			if len(c.says) == 1 {
				_, _ = m.Receive(ctx) // it hangs up
			}
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if err := <-r.failed; !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("the server says %v, want %v with %q", err, c.want, c.text)
			}
			r.noneLeft(t)
		})
	}
}

// Clients of later versions wait at the end until the server has disconnected their queue pairs.
func TestServerParts(t *testing.T) {
	r := newCMRig(t, false)
	for _, args := range []string{
		"write-bw -s 3000 -n 50", "send-bw -q 2 -n 600 -s 100", "read-bw -q 2 -n 50", "write-lat -n 50", "send-lat -n 50", "read-lat -n 50", "atomic-bw -n 50",
	} {
		t.Run(args, func(t *testing.T) {
			p, runs, err := parse(t, strings.Fields(args))
			if err != nil {
				t.Fatal(err)
			}
			k, err := dialStockCM(t, r, p, stockOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer k.close(nil)
			if _, err := k.once(t.Context(), runs[0]); err != nil {
				t.Fatal(err)
			}
			for _, c := range k.conns {
				if c.Err() != nil {
					t.Fatalf("before the end: %v", c.Err())
				}
			}
			if err := k.finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i, c := range k.conns {
				select {
				case <-c.Done():
				case <-time.After(10 * time.Second):
					t.Fatalf("queue pair %d is still connected", i)
				}
			}
		})
		r.noneLeft(t)
	}
	if len(r.failed) > 0 {
		t.Errorf("the server says %v", <-r.failed)
	}
}

// A client whose host is gone is noticed; one that is only slow is not taken for it.
func TestSilentCM(t *testing.T) {
	r := newCMRig(t, false)
	r.host.quiet = 20 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := newMailbox(r.client, mailQuiet)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	// The client's time-outs are the server's, too: 1 ms, eight times.
	if m.conn, err = r.client.Dial(ctx, r.cm, m.qp, roce.DialOptions{ConnectOptions: roce.ConnectOptions{Timeout: 8}}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond)
	if err := m.Send(ctx, append([]byte("6.06"), make([]byte, 12)...)); err != nil {
		t.Fatalf("a slow client: %v", err)
	}
	if _, err := m.Receive(ctx); err != nil {
		t.Fatalf("a slow client: %v", err)
	}
	if err := r.link.SetPlan(0, 1, loopback.Plan{Loss: 1}); err != nil {
		t.Fatal(err)
	}
	if err := <-r.failed; !errors.Is(err, perftest.ErrGone) || !strings.Contains(err.Error(), "retry") {
		t.Errorf("the server says %v", err)
	}
	r.noneLeft(t)
}

// One address gets half of the places and no more, and who asks but never comes has his place for a moment only.
func TestGreedyCM(t *testing.T) {
	r := newCMRig(t, false)
	r.host.meeting = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	knock := func() (*mailbox, error) {
		m, err := newMailbox(r.client, mailQuiet)
		if err != nil {
			t.Fatal(err)
		}
		m.conn, err = r.client.Dial(ctx, r.cm, m.qp, roce.DialOptions{})
		return m, err
	}
	var in []*mailbox
	for {
		m, err := knock()
		if errors.Is(err, roce.ErrRefused) {
			m.Close()
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		in = append(in, m)
	}
	if len(in) != cmSessions/2 {
		t.Errorf("one address has %d sessions of %d", len(in), cmSessions)
	}
	for _, m := range in {
		m.Close()
		<-r.failed // it left without a word
	}
	if err := r.link.SetPlan(1, 0, loopback.Plan{Loss: 1}); err != nil { // the answers do not come back
		t.Fatal(err)
	}
	go func() {
		m, _ := knock()
		m.Close()
	}()
	start := time.Now()
	if err := <-r.failed; !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 5*time.Second {
		t.Errorf("after %v the server says %v", time.Since(start), err)
	}
	cancel()
	r.noneLeft(t)
}

// A client finds nobody, and says what to look for.
func TestNobodyListensCM(t *testing.T) {
	r := newCMRig(t, false)
	p, _, err := parse(t, strings.Fields("write-bw -n 5"))
	if err != nil {
		t.Fatal(err)
	}
	r.cm = netip.AddrPortFrom(r.cm.Addr(), cmPort+1)
	if _, err := dialStockCM(t, r, p, stockOptions{}); !errors.Is(err, roce.ErrRefused) || !strings.Contains(err.Error(), "-R") {
		t.Errorf("got %v", err)
	}
}
