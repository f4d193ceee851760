package stock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/exchange/exchangetest"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/roce"
)

var tests = []string{
	"write-bw -s 3000 -n 200", "read-bw -s 4k -n 100", "send-bw -s 2000 -n 700", "atomic-bw -n 300",
	"atomic-bw -n 100 -A CMP_AND_SWAP", "write-lat -n 600", "write-lat -s 1 -n 5",
	"write-lat -s 24 -n 300",
	"write-lat -s 5000 -n 30", "read-lat -n 50", "send-lat -n 600 -s 1500", "atomic-lat -n 50",
	"write-bw -q 3 -n 50 -s 2k",
	"send-bw -q 8 -n 600 -s 100", "read-bw -q 2 -n 50", "send-bw -t 1 -n 20",
	"write-bw -D 0.1 -s 1k", "send-lat -D 0.5",
	"write-lat -D 0.1", "write-bw -m 256 -s 1k -n 10",
}

// Each operation works with perftest's protocol, with a server that knows the test and with one
// that infers it, and with both kinds of progress of the server.
func TestOperations(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newTCPTester(t, progress)
		for _, known := range []bool{true, false} {
			for _, args := range tests {
				t.Run(fmt.Sprintf("%v/known=%v/%s", progress, known, args), func(t *testing.T) {
					p, runs := parse(t, args)
					r.reset(nil)
					if known {
						r.reset(p)
					}
					if !known && p.Operation.Reply == perf.ReplyWrite && p.Bytes > pageBytes {
						r.checkUnknownSize(t, p, runs[0])
						return
					}
					row := r.measure(t, p, Options{Duration: runs[0].Duration > 0}, runs...)
					checkRow(t, p, runs[0], row)
					r.checkServed(t, p, runs[0], row)
				})
			}
		}
	}
}

// checkUnknownSize checks that write-lat with messages beyond a page fails, soon and with a reason,
// if the server does not know their size.
func (r *tester) checkUnknownSize(t *testing.T, p *perf.Params, run perf.Run) {
	t.Helper()
	defer func(old times) { r.server.times = old }(r.server.times)
	r.server.times.reply = 100 * time.Millisecond
	c, err := r.dial(t, p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(nil)
	if _, err := c.Run(t.Context(), run); err == nil {
		t.Error("Run succeeded")
	}
	if err := <-r.failed; !errors.Is(err, errNoWrite) {
		t.Errorf("the server's error is %v, want errNoWrite", err)
	}
}

// In a test of all sizes, the server sees each size. write-lat does not announce a new size; SENDs
// have a barrier between sizes.
func TestAllSizes(t *testing.T) {
	r := newTCPTester(t, roce.Manual)
	for _, known := range []bool{true, false} {
		for _, op := range []string{"write-lat", "send-lat", "send-bw", "write-bw", "read-lat"} {
			p, runs := parse(t, op+" -a -n 20")
			r.reset(nil)
			if known {
				r.reset(p)
			}
			const few = 14 // up to 16 KiB
			row := r.measure(t, p, Options{All: true}, runs[:few]...)
			checkRow(t, p, runs[few-1], row)
			rows := map[string]int{"write-lat": few, "send-lat": few, "send-bw": few,
				"write-bw": 1}[op]
			for i := range rows {
				select {
				case served := <-r.rows:
					if want := runs[few-rows+i].Bytes; served.Bytes != want ||
						served.Iterations != 20 {
						t.Errorf("%s: row %d has %d messages of %d bytes, want 20 of %d bytes",
							op, i, served.Iterations, served.Bytes, want)
					}
				case <-time.After(5 * time.Second):
					t.Fatalf("%s: the server has %d rows, want %d", op, i, rows)
				}
			}
		}
	}
}

// The protocol works over IPv6. Sides with different IP versions get an error.
func TestIPv6(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	for _, g := range r.client.GIDs() {
		if g.Kind == roce.GIDIPv6 {
			r.server.GID.Set(fmt.Sprint(g.Index))
		}
	}
	p, runs := parse(t, "write-bw -n 50 -s 3000")
	if _, err := r.dial(t, p, Options{}); err == nil ||
		!strings.Contains(err.Error(), "one IP version") {
		t.Errorf("IPv4 to IPv6: error %v, want advice about one IP version", err)
	}
	<-r.failed
	r.gid = r.server.GID
	checkRow(t, p, runs[0], r.measure(t, p, Options{}, runs...))
}

// The server releases the resources of a session whose client closes its connection early.
func TestClientVanishes(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newTCPTester(t, progress)
		for _, args := range []string{"write-lat", "send-lat", "send-bw -q 2", "write-bw"} {
			p, _ := parse(t, args)
			c, err := r.dial(t, p, Options{})
			if err != nil {
				t.Fatal(err)
			}
			c.Close(nil)
			r.awaitIdle(t)
		}
	}
}

// The client returns an error soon after the server has ended during a run.
func TestServerVanishes(t *testing.T) {
	r := newTCPTester(t, roce.Auto)
	for _, args := range []string{"write-lat -D 60", "send-bw -D 60", "read-bw -D 60"} {
		p, runs := parse(t, args)
		ln, err := exchange.Listen(t.Context(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		r.addr = ln.Addr().String()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- (&exchange.Server{
				Detect: r.server.Detect, CheckGID: exchangetest.AnyGID}).Serve(ctx, ln)
		}()
		c, err := r.dial(t, p, Options{Duration: true})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		_, err = c.Run(t.Context(), runs[0])
		if err == nil || time.Since(start) > 20*time.Second {
			t.Errorf("%s: Run returned %v after %v", args, err, time.Since(start))
		}
		c.Close(err)
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// A path MTU that is smaller than requested is no error, but the row reports it.
func TestReducedMTU(t *testing.T) {
	r := newTCPTester(t, roce.Auto) // path MTU 1024
	for asked, want := range map[string]roce.MTU{"4096": 4096, "1024": 0, "256": 0} {
		p, runs := parse(t, "write-bw -n 10 -m "+asked)
		if row := r.measure(t, p, Options{}, runs...); row.AskedMTU != want {
			t.Errorf("-m %s: AskedMTU = %d, want %d", asked, row.AskedMTU, want)
		}
		r.awaitIdle(t)
	}
}
