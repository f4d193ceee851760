package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/exchange/exchangetest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// parse returns the test that command line arguments describe.
func parse(args string) (*Params, []Run, error) {
	var o Options
	fs := pflag.NewFlagSet("perf", pflag.ContinueOnError)
	o.Register(fs)
	f := strings.Fields(args)
	if err := fs.Parse(f[1:]); err != nil {
		return nil, nil, err
	}
	return o.Test(fs, f[0])
}

func mustParse(t *testing.T, args string) (*Params, []Run) {
	t.Helper()
	p, runs, err := parse(args)
	if err != nil {
		t.Fatal(err)
	}
	return p, runs
}

// An invalid combination of flags is refused with an error that names the flag to change.
func TestOptions(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"write-bw", ""},
		{"write-bw -a -b -q 4 -n 10", ""},
		{"write-lat -D 5 -s 8", ""},
		{"atomic-bw -A CMP_AND_SWAP -q 2 -t 16", ""},
		{"write", "write-bw"},
		{"write-bw -a -s 64", "-a"},
		{"write-bw -a -D 5", "-D"},
		{"write-bw -n 5 -D 5", "-n"},
		{"write-lat -q 2", "-q"},
		{"write-lat -b", "-b"},
		{"write-lat -t 4", "-t"},
		{"atomic-bw -s 16", "8 bytes"},
		{"atomic-lat -a", "8 bytes"},
		{"send-bw -A FETCH_AND_ADD", "-A"},
		{"write-bw -m 1000", "1024"},
		{"write-bw -q 256 -t 8192", "-t"},
		{"write-bw -q 256 -s 2m", "512 MiB"},
		// The flags check their own range.
		{"write-bw -s 0", "-s"}, {"write-bw -s 1g", "-s"}, {"write-bw -n 0", "-n"},
		{"write-bw -D 0", "-D"},
		{"write-bw -D 25h", "-D"}, {"write-bw -q 0", "-q"}, {"write-bw -q 257", "-q"},
		{"write-bw -t 0", "-t"},
		{"write-bw -t 9000", "-t"}, {"write-bw -m 128", "-m"}, {"atomic-bw -A ADD", "-A"},
	} {
		t.Run(c.args, func(t *testing.T) {
			_, _, err := parse(c.args)
			if c.want == "" && err != nil {
				t.Fatal(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("error %v, want one that contains %q", err, c.want)
			}
		})
	}
}

func TestDefaultsOfPerftest(t *testing.T) {
	p, runs := mustParse(t, "write-bw")
	if p.Bytes != 65536 || p.QPs != 1 || p.Depth != 128 || len(runs) != 1 ||
		runs[0].Iterations != 5000 {
		t.Errorf("write-bw: %+v, %+v", p, runs)
	}
	p, runs = mustParse(t, "send-lat")
	if p.Bytes != 2 || runs[0].Iterations != 1000 {
		t.Errorf("send-lat: %+v, %+v", p, runs)
	}
	p, runs = mustParse(t, "read-bw -a")
	if p.Bytes != 8<<20 || len(runs) != 23 || runs[0].Bytes != 2 || runs[22].Bytes != 8<<20 {
		t.Errorf("read-bw -a: %+v, %d runs", p, len(runs))
	}
}

// tester is a server on one device and a client on the other. They exchange messages over TCP.
type tester struct {
	host   *Host
	client *roce.Device
	port   *testbed.Watched // of the server
	addr   string
	rows   chan *Row
	failed chan error
}

const budget = 64 << 20

func newTester(t *testing.T, server roce.Progress) *tester {
	t.Helper()
	r := &tester{rows: make(chan *Row, 64), failed: make(chan error, 10)}
	tb, err := testbed.New(testbed.Config{MTU: 1500, Device: [2][]roce.Option{
		{roce.WithProgress(roce.Manual)}, {roce.WithProgress(server)},
	}, Wrap: func(side int, p driver.Port) driver.Port {
		if side == 0 {
			return p
		}
		r.port = &testbed.Watched{Port: p, Function: "perf.(*latency).reply"}
		return r.port
	}})
	if err != nil {
		t.Fatal(err)
	}
	r.client = tb.Dev[0]
	r.host = &Host{
		Dev: tb.Dev[1], GID: device.AnyGID, Budget: session.NewBudget(budget),
		Finished: func(_ *Params, _ *session.Session, row *Row) { r.rows <- row },
	}
	t.Cleanup(func() {
		if err := tb.Close(); err != nil {
			t.Error(err)
		}
	})
	r.addr = exchangetest.Start(t, &exchange.Server{
		Services: map[string]exchange.Handler{Service: r.host.Serve},
		Log:      func(_ netip.AddrPort, err error) { r.failed <- err },
	})
	return r
}

// dial starts a session of the client.
func (r *tester) dial(t *testing.T, p *Params) gorxeClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	conn, err := exchange.Dial(ctx, r.addr)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewClient(ctx, r.client, conn, device.AnyGID, p)
	if err != nil {
		t.Fatal(err)
	}
	return c.(gorxeClient)
}

// measure performs runs in one session and returns the last row.
func (r *tester) measure(t *testing.T, p *Params, runs ...Run) (row *Row) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	c := r.dial(t, p)
	var err error
	for _, run := range runs {
		if row, err = c.Run(ctx, run); err != nil {
			break
		}
	}
	c.Close(err)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// fields returns the row as decoded JSON.
func fields(t *testing.T, row *Row) map[string]any {
	t.Helper()
	b, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// Each operation works with both kinds of progress of the server. The client's row is complete, and
// the server shows the same row.
func TestOperations(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newTester(t, progress)
		for _, args := range []string{
			"write-bw -s 3000 -n 200", "write-imm-bw -s 64 -n 700", "read-bw -s 4k -n 100",
			"send-bw -s 2000 -n 700",
			"atomic-bw -n 300", "atomic-bw -n 100 -A CMP_AND_SWAP", "write-lat -n 300",
			"read-lat -n 50",
			"send-lat -n 600 -s 1500", "atomic-lat -n 50", "write-bw -b -q 3 -n 50 -s 2k",
			"send-bw -b -q 2 -n 600 -s 100",
			"read-bw -b -n 50", "write-imm-bw -b -n 600 -s 1", "write-bw -t 1 -n 20",
			"write-bw -D 0.1 -s 1k",
			"send-lat -D 0.1", "write-bw -m 256 -s 1k -n 10",
		} {
			t.Run(fmt.Sprintf("%v/%s", progress, args), func(t *testing.T) {
				p, runs := mustParse(t, args)
				row := r.measure(t, p, runs[0])
				checkRow(t, p, runs[0], row)
				other := <-r.rows
				row.Network, other.Network = nil, nil // each side has its own
				served := fmt.Sprintf("%+v", fields(t, other))
				if want := fmt.Sprintf("%+v", fields(t, row)); served != want {
					t.Errorf("the server's row is %v, the client's %v", served, want)
				}
			})
		}
	}
}

func checkRow(t *testing.T, p *Params, run Run, row *Row) {
	t.Helper()
	m := fields(t, row)
	want := map[string]any{"op": p.Op, "datapath": "memory", "path_mtu": 1024.0,
		"bytes": float64(run.Bytes)}
	if p.MTU != 0 {
		want["path_mtu"] = float64(p.MTU)
	}
	n := run.Iterations * p.QPs
	if p.Bidirectional {
		n *= 2
	}
	if n > 0 {
		want["iterations"] = float64(n)
	}
	for k, v := range want {
		if m[k] != v {
			t.Errorf("%s = %v, want %v", k, m[k], v)
		}
	}
	columns := []string{"bw_peak", "bw_average", "msg_rate"}
	if p.Operation.Latency {
		columns = []string{"t_min", "t_typical", "t_avg", "t_99", "t_99_9", "t_max"}
	}
	last := 0.0
	for _, k := range columns {
		v, ok := m[k].(float64)
		if !ok || v <= 0 {
			t.Errorf("%s = %v in %v", k, m[k], m)
		}
		if p.Operation.Latency && k != "t_avg" && v < last {
			t.Errorf("%s = %v is smaller than the previous column: %v", k, v, m)
		}
		if k != "t_avg" {
			last = v
		}
	}
	if n := row.Network; n == nil || n.Window == 0 {
		t.Errorf("network statistics %+v, want a window", n)
	}
	if !p.Operation.Latency && row.Peak < row.Average {
		t.Errorf("peak %v is below the average %v", row.Peak, row.Average)
	}
}

// A session performs several runs with different sizes.
func TestRunsOfOneSession(t *testing.T) {
	r := newTester(t, roce.Auto)
	for _, op := range []string{"write-lat", "send-lat", "send-bw"} {
		p, runs := mustParse(t, op+" -a -n 20")
		const few = 14 // up to 16 KiB
		p.Bytes = runs[few-1].Bytes
		row := r.measure(t, p, runs[:few]...)
		checkRow(t, p, runs[few-1], row)
		for range few {
			<-r.rows
		}
	}
}

// The server checks the parameters of a request.
func TestServerRefuses(t *testing.T) {
	r := newTester(t, roce.Auto)
	good := Params{Op: "write-bw", Bytes: 64, QPs: 1, Depth: 8}
	for name, c := range map[string]struct {
		change func(*Params)
		want   string
	}{
		"operation": {func(p *Params) { p.Op = "format-disk" }, "no operation"},
		"size":      {func(p *Params) { p.Bytes = 1 << 40 }, "choose"},
		"negative":  {func(p *Params) { p.Bytes = -1 }, "choose"},
		"QPs":       {func(p *Params) { p.QPs = 1 << 20 }, "choose"},
		"depth":     {func(p *Params) { p.Depth = 0 }, "choose"},
		"MTU":       {func(p *Params) { p.MTU = 7 }, "choose"},
		"memory":    {func(p *Params) { p.Bytes = 200 << 20 }, "left for"},
		"no QPs":    {func(*Params) {}, "queue pairs do not match"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.change(&p)
			conn, err := exchange.Dial(t.Context(), r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, err = conn.Request(t.Context(), Service, p, nil)
			if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the client receives %v, want %q", err, c.want)
			}
			if err := <-r.failed; !strings.Contains(err.Error(), c.want) {
				t.Errorf("the server logs %v, want %q", err, c.want)
			}
		})
	}
}

// If a client closes the connection or sends garbage during a run, the server releases the
// session's resources and serves the next client.
func TestClientVanishes(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newTester(t, progress)
		for _, op := range []string{"write-lat", "send-lat", "send-bw", "write-bw"} {
			for _, garbage := range []bool{false, true} {
				p, runs := mustParse(t, op)
				c := r.dial(t, p)
				run := &exchange.Message{Kind: exchange.KindRun, Params: exchange.Encode(runs[0])}
				if err := c.conn.Send(t.Context(), run); err != nil {
					t.Fatal(err)
				}
				if _, err := c.conn.Receive(t.Context(), exchange.KindReady); err != nil {
					t.Fatal(err)
				}
				if garbage {
					c.conn.Refuse(errors.New("stopped"))
				}
				c.Close(nil)
				if err := <-r.failed; !errors.Is(err, exchange.ErrGone) &&
					!errors.Is(err, exchange.ErrRemote) {
					t.Errorf("%s: the server logs %v", op, err)
				}
			}
		}
		if n := r.host.Budget.Used(); n != 0 {
			t.Errorf("%d bytes were not released", n)
		}
		r.host.Budget = nil
		p, runs := mustParse(t, "write-bw -n 10")
		r.measure(t, p, runs...)
	}
}

// A path MTU that is smaller than requested is no error, but the row reports it.
func TestReducedMTU(t *testing.T) {
	r := newTester(t, roce.Auto) // path MTU 1024
	for asked, want := range map[string]roce.MTU{"4096": 4096, "1024": 0, "256": 0} {
		p, runs := mustParse(t, "write-bw -n 10 -m "+asked)
		if row := r.measure(t, p, runs...); row.AskedMTU != want {
			t.Errorf("-m %s: AskedMTU = %d, want %d", asked, row.AskedMTU, want)
		}
	}
}

// The mark of a message differs from the previous one, and the first one differs from 0.
func TestMark(t *testing.T) {
	last := byte(0)
	for i := int64(1); i < 1000; i++ {
		m := mark(i)
		if m == last {
			t.Fatalf("message %d has mark %d like the previous one", i, m)
		}
		last = m
	}
}

// Completions arrive in bursts. A burst at the end of a short interval does not raise the peak.
func TestPeakIgnoresBursts(t *testing.T) {
	p := &Params{Op: "write-bw", Bytes: 8 << 20, QPs: 2, Depth: 128}
	if err := p.Check(); err != nil {
		t.Fatal(err)
	}
	b := &bandwidth{
		Side: &Side{Params: p}, run: Run{Bytes: p.Bytes}, batch: p.Batch(p.Bytes),
		samples: make([]sample, 0, maxSamples),
	}
	if b.batch != 1 {
		t.Fatalf("batch of %d messages of 8 MiB, want 1", b.batch)
	}
	start := time.Now()
	b.samples = append(b.samples, sample{at: start})
	// Each queue pair completes 10 messages once per second. The two bursts are 11 ms apart.
	now := start
	for range 3 {
		for _, after := range []time.Duration{989 * time.Millisecond, 11 * time.Millisecond} {
			now = now.Add(after)
			b.completed += 10
			b.sample(now)
		}
	}
	r := b.result(start, now)
	if average := r.Rate(p.Bytes); r.Peak < average || r.Peak > 1.05*average {
		t.Errorf("peak %.0f with an average of %.0f", r.Peak, average)
	}
}

func TestGigabits(t *testing.T) {
	row := &Row{BandwidthColumns: &BandwidthColumns{Peak: 1000, Average: 900, Unit: UnitMB}}
	row.Gigabits()
	if row.BandwidthColumns.Unit != UnitGb || row.Average != 7.55 {
		t.Errorf("900 MB/sec = %+v", row.BandwidthColumns)
	}
}

// The bandwidth of both sides together is rounded after it was added: rounded numbers can have sums
// such as 0.30000000000000004.
func TestSumIsRounded(t *testing.T) {
	side := func(rate float64) *BandwidthResult {
		return &BandwidthResult{Messages: int64(rate * 1000), Time: 1000 * time.Second, Peak: rate * MB}
	}
	n, c := sum(MB, side(0.1), nil, side(0.2))
	if want := (BandwidthColumns{Peak: 0.3, Average: 0.3, Unit: UnitMB}); n != 300 || *c != want {
		t.Errorf("sum() = %d, %+v, want 300, %+v", n, *c, want)
	}
}
