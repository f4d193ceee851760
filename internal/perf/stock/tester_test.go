package stock

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/exchange/exchangetest"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

const (
	cmPort     = perftest.DefaultPort
	budget     = 256 << 20
	maxTestQPs = 24
)

// parse returns the test that command line arguments describe.
func parse(t *testing.T, args string) (*perf.Params, []perf.Run) {
	t.Helper()
	var o perf.Options
	fs := pflag.NewFlagSet("perf", pflag.ContinueOnError)
	o.Register(fs)
	f := strings.Fields(args)
	if err := fs.Parse(f[1:]); err != nil {
		t.Fatal(err)
	}
	p, runs, err := o.Test(fs, f[0])
	if err != nil {
		t.Fatal(err)
	}
	return p, runs
}

// tester is a server on one device and a client on the other. They connect over TCP or by rdma_cm.
type tester struct {
	*testbed.Testbed
	server *Server
	client *roce.Device
	gid    device.GIDIndex // of the client
	addr   string
	cm     netip.AddrPort // of the server, if the sides use rdma_cm
	free   int            // queue pairs of the server's device before the test
	rows   chan *perf.Row
	failed chan error
}

// newTester returns a tester without a running server.
func newTester(t *testing.T, c testbed.Config) *tester {
	t.Helper()
	c.MTU = 1500
	tb, err := testbed.New(c)
	if err != nil {
		t.Fatal(err)
	}
	r := &tester{
		Testbed: tb, client: tb.Dev[0], gid: device.AnyGID, rows: make(chan *perf.Row, 64),
		failed: make(chan error, 10),
	}
	r.server = &Server{Host: perf.Host{
		Dev: tb.Dev[1], GID: device.AnyGID, Budget: session.NewBudget(budget),
		Finished: func(_ *perf.Params, _ *session.Session, row *perf.Row) { r.rows <- row },
	}, times: times{first: 200 * time.Millisecond, reply: 3 * time.Second}}
	t.Cleanup(func() {
		if err := tb.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// newTCPTester returns a tester with a server that listens on TCP.
func newTCPTester(t *testing.T, server roce.Progress, opts ...roce.Option) *tester {
	t.Helper()
	r := newTester(t, testbed.Config{Options: opts, Device: [2][]roce.Option{
		{roce.WithProgress(roce.Manual)}, {roce.WithProgress(server)},
	}})
	r.serve(t, &exchange.Server{Log: func(_ netip.AddrPort, err error) { r.failed <- err }})
	return r
}

// serve runs s, which serves r.server's clients, until the test ends.
func (r *tester) serve(t *testing.T, s *exchange.Server) {
	t.Helper()
	s.Services = map[string]exchange.Handler{perf.Service: r.server.Serve}
	s.Detect = r.server.Detect
	r.addr = exchangetest.Start(t, s)
}

// newCMTester returns a tester with a server that listens for rdma_cm, with one IP version.
func newCMTester(t *testing.T, v6 bool) *tester {
	t.Helper()
	r := newTester(t, testbed.Config{Options: []roce.Option{roce.WithExpert(roce.Expert{MaxQP: maxTestQPs})}})
	for _, a := range r.Link.Port(1).Addrs() {
		if a.Addr().Is4() != v6 && !a.Addr().IsLinkLocalUnicast() {
			r.cm = netip.AddrPortFrom(a.Addr(), cmPort)
		}
	}
	l, err := r.server.Dev.Listen(netip.AddrPortFrom(netip.Addr{}, cmPort), roce.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	r.free = r.freeQPs(t)
	exchangetest.Background(t, func(ctx context.Context) error {
		return r.server.ServeCM(ctx, l, func(_ netip.AddrPort, err error) {
			if err != nil && ctx.Err() == nil {
				r.failed <- err
			}
		})
	})
	return r
}

// dial starts a session that uses perftest's protocol.
func (r *tester) dial(t *testing.T, p *perf.Params, o Options) (*client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	if r.cm.IsValid() {
		c, err := DialCM(ctx, r.client, r.gid, r.cm, p, o)
		if err != nil {
			return nil, err
		}
		return c.(*client), nil
	}
	conn, err := exchange.Dial(ctx, r.addr)
	if err != nil {
		return nil, err
	}
	// Unlike Dial, this does not announce gorxe.
	link := perftest.NewLink(conn.Stream())
	msgs, err := perftest.Greet(ctx, link, false)
	if err == nil && msgs.Peer.Gorxe {
		err = errors.New("the server sent the mark of gorxe to a perftest client")
	}
	var c *client
	if err == nil {
		server := peer{link: link, local: conn.Local().AddrPort().Addr()}
		c, err = newClient(ctx, r.client, r.gid, server, msgs, p, o)
	}
	if err != nil {
		conn.Close()
	}
	return c, err
}

// measure performs runs in one session and returns the last row.
func (r *tester) measure(t *testing.T, p *perf.Params, o Options,
	runs ...perf.Run) (row *perf.Row) {
	t.Helper()
	c, err := r.dial(t, p, o)
	if err != nil {
		r.logServerError(t)
		t.Fatal(err)
	}
	defer c.Close(nil)
	for _, run := range runs {
		if row, err = c.Run(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Finish(t.Context()); err != nil {
		r.logServerError(t)
		t.Fatal("Finish:", err)
	}
	return row
}

// logServerError logs the error of the server, if there is one.
func (r *tester) logServerError(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.failed:
		t.Logf("the server's error: %v", err)
	case <-time.After(2 * time.Second):
		t.Log("the server has no error")
	}
}

// reset sets what the server knows about the next test, and discards rows of failed tests.
func (r *tester) reset(want *perf.Params) {
	r.server.Want, r.server.Size = want, 0
	if want != nil && want.Bytes != perf.LargestSize {
		r.server.Size = want.Bytes
	}
	for len(r.rows) > 0 {
		<-r.rows
	}
}

// checkRow checks a row of the client.
func checkRow(t *testing.T, p *perf.Params, run perf.Run, row *perf.Row) {
	t.Helper()
	mtu := roce.MTU(1024)
	if p.MTU != 0 {
		mtu = p.MTU
	}
	if row.Op != p.Op || row.PathMTU != mtu || row.Bytes != run.Bytes {
		t.Errorf("row = %+v, want %s with path MTU %d and %d bytes", row, p.Op, mtu, run.Bytes)
	}
	if n := int64(run.Iterations * p.QPs); n > 0 && row.Iterations != n || row.Iterations == 0 {
		t.Errorf("%d iterations, want %d", row.Iterations, n)
	}
	checkColumns(t, p, row)
	switch {
	case p.Operation.Latency && row.LatencyColumns.Min <= 0:
		t.Errorf("latency %+v, want a minimum above 0", row.LatencyColumns)
	case !p.Operation.Latency && (row.Average <= 0 || row.Peak < row.Average):
		t.Errorf("bandwidth %+v, want a peak of at least the average", row.BandwidthColumns)
	}
}

func checkColumns(t *testing.T, p *perf.Params, row *perf.Row) {
	t.Helper()
	if p.Operation.Latency != (row.LatencyColumns != nil) ||
		p.Operation.Latency == (row.BandwidthColumns != nil) {
		t.Fatalf("%s has the wrong columns: %+v", p.Op, row)
	}
}

// checkServed checks the server's row. The server knows the result of one-sided bandwidth from the
// client, and that of SENDs and write-lat from its own observation. It knows nothing about READs
// and atomics of latency tests.
func (r *tester) checkServed(t *testing.T, p *perf.Params, run perf.Run, row *perf.Row) {
	t.Helper()
	if p.Operation.Latency && p.Operation.Reply == perf.ReplyNone {
		return
	}
	select {
	case served := <-r.rows:
		if served.Bytes != run.Bytes || served.Iterations != row.Iterations ||
			served.PathMTU != row.PathMTU {
			t.Errorf("the server's row is %+v, the client's %+v", served, row)
		}
		checkColumns(t, p, served)
	case <-time.After(5 * time.Second):
		t.Error("the server has no row")
	}
}

// awaitIdle waits until the server has released the memory of all sessions.
func (r *tester) awaitIdle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := r.server.Budget.Used()
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes were not released", n)
		}
	}
}

// freeQPs returns how many queue pairs the server's device can still create.
func (r *tester) freeQPs(t *testing.T) int {
	t.Helper()
	e, err := endpoint.New(r.server.Dev, endpoint.Config{
		QPs: -1, SendCQ: 1, QP: roce.QPConfig{SendDepth: 1, RecvDepth: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = e.AddQP()
	}
	n := len(e.QPs)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	return n
}

// awaitReleased waits until the server has released all memory and queue pairs of its sessions.
func (r *tester) awaitReleased(t *testing.T) {
	t.Helper()
	r.awaitIdle(t)
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		n := r.freeQPs(t)
		if n == r.free {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d queue pairs were not released", r.free-n)
		}
	}
}
