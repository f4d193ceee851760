package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// What a user cannot mean is refused with the flag that would mend it.
func TestParams(t *testing.T) {
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
	} {
		t.Run(c.args, func(t *testing.T) {
			_, _, err := parse(t, strings.Fields(c.args))
			if c.want == "" && err != nil {
				t.Fatal(err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Fatalf("got %v, want a word about %s", err, c.want)
			}
		})
	}
	// Out of range by itself: the flag's own check.
	for _, args := range []string{"-s 0", "-s 1g", "-n 0", "-D 0", "-D 25h", "-q 0", "-q 257", "-t 0", "-t 9000", "-m 128", "-p 0", "-p 65536", "-x -1", "-x 256", "-A ADD"} {
		f, cmd := new(flags), Command()
		cmd.ResetFlags()
		f.register(cmd.Flags())
		if err := cmd.ParseFlags(strings.Fields(args)); err == nil {
			t.Errorf("%s passed", args)
		}
	}
}

func parse(t *testing.T, args []string) (*Params, []Run, error) {
	t.Helper()
	f, cmd := new(flags), Command()
	cmd.ResetFlags()
	f.register(cmd.Flags())
	if err := cmd.ParseFlags(args[1:]); err != nil {
		t.Fatal(err)
	}
	return f.params(cmd.Flags(), args[0])
}

func TestDefaultsArePerftests(t *testing.T) {
	p, runs, err := parse(t, []string{"write-bw"})
	if err != nil || p.Bytes != 65536 || p.QPs != 1 || p.Depth != 128 || len(runs) != 1 || runs[0].Iterations != 5000 {
		t.Errorf("write-bw: %+v, %+v, %v", p, runs, err)
	}
	p, runs, err = parse(t, []string{"send-lat"})
	if err != nil || p.Bytes != 2 || runs[0].Iterations != 1000 {
		t.Errorf("send-lat: %+v, %+v, %v", p, runs, err)
	}
	p, runs, err = parse(t, []string{"read-bw", "-a"})
	if err != nil || p.Bytes != 8<<20 || len(runs) != 23 || runs[0].Bytes != 2 || runs[22].Bytes != 8<<20 {
		t.Errorf("read-bw -a: %+v, %d runs, %v", p, len(runs), err)
	}
}

// rig is a server and a client on the in-memory link; they meet over TCP on this host.
type rig struct {
	host   *Host
	client *roce.Device
	flags  *device.Flags // the client's
	addr   string
	cm     netip.AddrPort // of the server, if the two meet so
	link   *loopback.Link
	free   int // queue pairs of the server's device, see room
	rows   chan *Row
	failed chan error
}

func anyGID() *device.Flags { return &device.Flags{GIDIndex: -1} }

func newRig(t *testing.T, server roce.Progress) *rig { return newRigOf(t, server) }

func newRigOf(t *testing.T, server roce.Progress, opts ...roce.Option) *rig {
	t.Helper()
	link, err := loopback.NewLink(loopback.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	open := func(i int, p roce.Progress) *roce.Device {
		d, err := roce.New(link.Port(i), append(opts, roce.WithProgress(p))...)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	r := &rig{flags: anyGID(), rows: make(chan *Row, 64), failed: make(chan error, 10)}
	r.client = open(0, roce.Manual)
	r.host = &Host{
		Dev: open(1, server), Flags: anyGID(), Budget: session.NewBudget(64 << 20),
		Finished: func(_ *Params, _ *session.Session, row *Row) { r.rows <- row },
	}
	ln, err := exchange.Listen(t.Context(), "", 0)
	if err != nil {
		t.Fatal(err)
	}
	r.addr = fmt.Sprintf("127.0.0.1:%d", ln.Addr().(*net.TCPAddr).Port)
	srv := &exchange.Server{
		Services: map[string]exchange.Handler{Service: r.host.Serve},
		Detect:   r.host.Greet,
		Log:      func(_ net.Addr, err error) { r.failed <- err },
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ctx, ln) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Serve: %v", err)
		}
		for _, d := range []*roce.Device{r.client, r.host.Dev} {
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		}
	})
	return r
}

// Every operation, in both ways of progress of the server: the client's row is whole, and the server shows the same.
func TestOperations(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newRig(t, progress)
		for _, args := range []string{
			"write-bw -s 3000 -n 200", "write-imm-bw -s 64 -n 700", "read-bw -s 4k -n 100", "send-bw -s 2000 -n 700", "atomic-bw -n 300",
			"atomic-bw -n 100 -A CMP_AND_SWAP", "write-lat -n 300", "read-lat -n 50", "send-lat -n 600 -s 1500", "atomic-lat -n 50",
			"write-bw -b -q 3 -n 50 -s 2k", "send-bw -b -q 2 -n 600 -s 100", "read-bw -b -n 50", "write-imm-bw -b -n 600 -s 1", "write-bw -t 1 -n 20",
			"write-bw -D 0.1 -s 1k", "send-lat -D 0.1", "write-bw -m 256 -s 1k -n 10",
		} {
			t.Run(fmt.Sprintf("%v/%s", progress, args), func(t *testing.T) {
				p, runs, err := parse(t, strings.Fields(args))
				if err != nil {
					t.Fatal(err)
				}
				row := r.measure(t, p, runs[0])
				checkRow(t, p, runs[0], row)
				if served := <-r.rows; fmt.Sprintf("%+v", flat(t, served)) != fmt.Sprintf("%+v", flat(t, row)) {
					t.Errorf("the server shows %v, the client %v", flat(t, served), flat(t, row))
				}
			})
		}
	}
}

func (r *rig) measure(t *testing.T, p *Params, runs ...Run) (row *Row) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	pr, err := dial(ctx, r.client, anyGID(), r.addr, p, stockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range runs {
		if row, err = pr.once(ctx, run); err != nil {
			pr.close(err)
			t.Fatal(err)
		}
	}
	pr.close(nil)
	return row
}

func dialPair(t *testing.T, r *rig, p *Params) (*pair, error) {
	t.Helper()
	c, err := dial(t.Context(), r.client, anyGID(), r.addr, p, stockOptions{})
	if err != nil {
		return nil, err
	}
	return c.(*pair), nil
}

func flat(t *testing.T, row *Row) map[string]any {
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

func checkRow(t *testing.T, p *Params, run Run, row *Row) {
	t.Helper()
	m := flat(t, row)
	want := map[string]any{"op": p.Op, "datapath": "memory", "path_mtu": 1024.0, "bytes": float64(run.Bytes)}
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
	if p.op.latency {
		columns = []string{"t_min", "t_typical", "t_avg", "t_99", "t_99_9", "t_max"}
	}
	last := 0.0
	for _, k := range columns {
		v, ok := m[k].(float64)
		if !ok || v <= 0 {
			t.Errorf("%s = %v in %v", k, m[k], m)
		}
		if p.op.latency && k != "t_avg" && v < last {
			t.Errorf("%s = %v is less than what comes before it: %v", k, v, m)
		}
		if k != "t_avg" {
			last = v
		}
	}
	if !p.op.latency && row.Peak < row.Average {
		t.Errorf("peak %v below the average %v", row.Peak, row.Average)
	}
}

// -a: several runs in one session, each with buffers as the last one left them.
func TestRunsOfOneSession(t *testing.T) {
	r := newRig(t, roce.Auto)
	for _, op := range []string{"write-lat", "send-lat", "send-bw"} {
		p, runs, err := parse(t, []string{op, "-a", "-n", "20"})
		if err != nil {
			t.Fatal(err)
		}
		const few = 14 // up to 16 KiB
		p.Bytes = runs[few-1].Bytes
		row := r.measure(t, p, runs[:few]...)
		checkRow(t, p, runs[few-1], row)
		for range few {
			<-r.rows
		}
	}
}

// A server checks for itself what a client asks for.
func TestServerRefuses(t *testing.T) {
	r := newRig(t, roce.Auto)
	good := Params{Op: "write-bw", Bytes: 64, QPs: 1, Depth: 8}
	for name, c := range map[string]struct {
		spoil func(*Params)
		want  string
	}{
		"operation": {func(p *Params) { p.Op = "format-disk" }, "no operation"},
		"size":      {func(p *Params) { p.Bytes = 1 << 40 }, "choose"},
		"negative":  {func(p *Params) { p.Bytes = -1 }, "choose"},
		"QPs":       {func(p *Params) { p.QPs = 1 << 20 }, "choose"},
		"depth":     {func(p *Params) { p.Depth = 0 }, "choose"},
		"MTU":       {func(p *Params) { p.MTU = 7 }, "choose"},
		"memory":    {func(p *Params) { p.Bytes = 200 << 20 }, "left of"},
		"no QPs":    {func(*Params) {}, "queue pairs do not fit"},
	} {
		t.Run(name, func(t *testing.T) {
			p := good
			c.spoil(&p)
			conn, err := exchange.Dial(t.Context(), r.addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.Send(t.Context(), &exchange.Message{Kind: exchange.KindRequest, Service: Service, Params: exchange.Encode(p)}); err != nil {
				t.Fatal(err)
			}
			_, err = conn.Receive(t.Context(), exchange.KindAccept)
			if !errors.Is(err, exchange.ErrRemote) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the client hears %v, want %q", err, c.want)
			}
			if err := <-r.failed; !strings.Contains(err.Error(), c.want) {
				t.Errorf("the log says %v", err)
			}
		})
	}
}

// A client that vanishes in the middle of a run, and one that sends nonsense then, cost only themselves: the
// server lets go of all they had, and serves the next.
func TestClientVanishes(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newRig(t, progress)
		for _, op := range []string{"write-lat", "send-lat", "send-bw", "write-bw"} {
			for _, last := range []string{"", "nonsense\n"} {
				p, runs, err := parse(t, []string{op})
				if err != nil {
					t.Fatal(err)
				}
				pr, err := dialPair(t, r, p)
				if err != nil {
					t.Fatal(err)
				}
				if err := pr.conn.Send(t.Context(), &exchange.Message{Kind: exchange.KindRun, Params: exchange.Encode(runs[0])}); err != nil {
					t.Fatal(err)
				}
				if _, err := pr.conn.Receive(t.Context(), exchange.KindReady); err != nil {
					t.Fatal(err)
				}
				if last == "" {
					pr.close(nil)
				} else {
					pr.conn.Refuse(errors.New("changed my mind"))
					pr.s.Close()
				}
				if err := <-r.failed; !errors.Is(err, exchange.ErrGone) && !errors.Is(err, exchange.ErrRemote) {
					t.Errorf("%s: the log says %v", op, err)
				}
			}
		}
		if _, err := r.host.Budget.Take(64 << 20); err != nil {
			t.Errorf("memory was not given back: %v", err)
		}
		r.host.Budget = nil
		p, runs, _ := parse(t, []string{"write-bw", "-n", "10"})
		r.measure(t, p, runs...)
	}
}

// The columns stand under their titles, as perftest's do.
func TestColumns(t *testing.T) {
	var b bytes.Buffer
	printTitles(&b, false, false)
	row := &Row{Bytes: 65536, Iterations: 5000, bwColumns: &bwColumns{Peak: 1000, Average: 900, Unit: unitMB, MsgRate: 0.0144}}
	row.print(&b)
	row.gigabits()
	if row.bwColumns.Unit != unitGb || row.Average != 7.55 {
		t.Errorf("in Gb/sec: %+v", row.bwColumns)
	}
	printTitles(&b, true, false)
	(&Row{Bytes: 8, Iterations: 1000, latColumns: &latColumns{Min: 1, Max: 9, Typical: 2, Avg: 2.5, StdDev: .1, P99: 3, P999: 4}}).print(&b)
	want := []string{
		" #bytes        #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]",
		" 65536         5000           1000.00            900.00                0.014400",
		" #bytes        #iterations       t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]",
		" 8             1000                     1.00           9.00             2.00           2.50             0.10                   3.00                     4.00",
	}
	got := strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("got\n%s\nwant\n%s", b.String(), strings.Join(want, "\n"))
		}
	}
}

// A message's mark differs from the one before it, also where it wraps, and the first from an empty buffer.
func TestMark(t *testing.T) {
	last := byte(0)
	for i := int64(1); i < 1000; i++ {
		m := mark(i)
		if m == last {
			t.Fatalf("message %d has mark %d after %d", i, m, last)
		}
		last = m
	}
}

// Completions come in lumps. A lump that ends a short span makes no peak; steady progress does.
func TestPeakIsNoLump(t *testing.T) {
	p := &Params{Op: "write-bw", Bytes: 8 << 20, QPs: 2, Depth: 128}
	if err := p.check(); err != nil {
		t.Fatal(err)
	}
	b := &bandwidth{end: &end{p: p}, run: Run{Bytes: p.Bytes}, batch: p.batch(p.Bytes), samples: make([]sample, 0, maxSamples)}
	if b.batch != 1 {
		t.Fatalf("%d messages of 8 MiB in a batch", b.batch)
	}
	start := time.Now()
	b.samples = append(b.samples, sample{at: start})
	// Each QP completes 10 messages at a time, once a second; the two 11 ms apart.
	now := start
	for range 3 {
		for _, after := range []time.Duration{989 * time.Millisecond, 11 * time.Millisecond} {
			now = now.Add(after)
			b.completed += 10
			b.sample(now)
		}
	}
	r := b.result(start, now)
	if average := r.rate(p.Bytes); r.Peak < average || r.Peak > 1.05*average {
		t.Errorf("peak %.0f with an average of %.0f", r.Peak, average)
	}
}

// -m beyond what the path carries is no failure, but it is said: in the head and in every row.
func TestSmallerMTU(t *testing.T) {
	r := newRig(t, roce.Auto) // 1024
	for _, stock := range []bool{false, true} {
		for asked, want := range map[string]roce.MTU{"4096": 4096, "1024": 0, "256": 0} {
			p, runs, err := parse(t, []string{"write-bw", "-n", "10", "-m", asked})
			if err != nil {
				t.Fatal(err)
			}
			var c client
			if stock {
				c, err = dialStock(t, r, p, stockOptions{})
			} else {
				c, err = dialPair(t, r, p)
			}
			if err != nil {
				t.Fatal(err)
			}
			row, err := c.once(t.Context(), runs[0])
			if err != nil || row.AskedMTU != want {
				t.Errorf("stock=%v -m %s: the row has %d, want %d (%v)", stock, asked, row.AskedMTU, want, err)
			}
			var head bytes.Buffer
			printHead(&head, p, c.session(), c.session().Peer, false)
			if got := strings.Contains(head.String(), "Path MTU 1024, not 4096 as -m asks"); got != (want != 0) {
				t.Errorf("stock=%v -m %s: the head is %s", stock, asked, head.String())
			}
			if err := c.finish(t.Context()); err != nil {
				t.Error(err)
			}
			c.close(nil)
			r.idle(t)
		}
	}
}
