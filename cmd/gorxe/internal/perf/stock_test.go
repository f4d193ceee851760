package perf

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

// dialStock is dial of a client that does not show itself as gorxe, so that both ends speak perftest's exchange.
func dialStock(t *testing.T, r *rig, p *Params, o stockOptions) (*stockClient, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	conn, err := exchange.Dial(ctx, r.addr)
	if err != nil {
		return nil, err
	}
	link := perftest.NewLink(conn.Stream())
	talk, err := perftest.Greet(ctx, link, false)
	if err == nil && talk.Peer.Gorxe {
		err = errors.New("the server shows itself to a stranger")
	}
	var k *stockClient
	if err == nil {
		k, err = openStock(ctx, r.client, r.flags, meeting{link: link, local: conn.Local().AddrPort().Addr()}, talk, p, o)
	}
	if err != nil {
		conn.Close()
	}
	return k, err
}

var stockOps = []string{
	"write-bw -s 3000 -n 200", "read-bw -s 4k -n 100", "send-bw -s 2000 -n 700", "atomic-bw -n 300", "atomic-bw -n 100 -A CMP_AND_SWAP",
	"write-lat -n 600", "write-lat -s 1 -n 5", "write-lat -s 24 -n 300", "write-lat -s 5000 -n 30", "read-lat -n 50", "send-lat -n 600 -s 1500",
	"atomic-lat -n 50", "write-bw -q 3 -n 50 -s 2k", "send-bw -q 8 -n 600 -s 100", "read-bw -q 2 -n 50", "send-bw -t 1 -n 20", "write-bw -D 0.1 -s 1k",
	"send-lat -D 0.1", "write-lat -D 0.1", "write-bw -m 256 -s 1k -n 10",
}

// Every operation by perftest's exchange, with a server that knows which and with one that has to see it from what
// comes; both in both ways of progress.
func TestStock(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newRig(t, progress)
		for _, known := range []bool{true, false} {
			for _, args := range stockOps {
				t.Run(fmt.Sprintf("%v/known=%v/%s", progress, known, args), func(t *testing.T) {
					p, runs, err := parse(t, strings.Fields(args))
					if err != nil {
						t.Fatal(err)
					}
					r.host.Want, r.host.Size = nil, 0
					if known {
						r.host.Want, r.host.Size = p, p.Bytes
					}
					r.drain()
					if !known && p.op.echo == echoWrite && p.Bytes > pageBytes {
						r.cannotKnow(t, p, runs[0])
						return
					}
					row := r.measureStock(t, p, stockOptions{duration: runs[0].Duration > 0}, runs...)
					checkRow(t, p, runs[0], row)
					checkServed(t, r, p, runs[0], row)
				})
			}
		}
	}
}

// cannotKnow: messages of write-lat beyond a page, of which nobody told the server, fail soon and with a reason.
func (r *rig) cannotKnow(t *testing.T, p *Params, run Run) {
	t.Helper()
	k, err := dialStock(t, r, p, stockOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer k.close(nil)
	if _, err := k.once(t.Context(), run); err == nil {
		t.Error("it worked")
	}
	if err := <-r.failed; !errors.Is(err, errNoWrite) {
		t.Errorf("the server says: %v", err)
	}
}

func (r *rig) measureStock(t *testing.T, p *Params, o stockOptions, runs ...Run) (row *Row) {
	t.Helper()
	dial := dialStock
	if r.cm.IsValid() {
		dial = dialStockCM
	}
	k, err := dial(t, r, p, o)
	if err != nil {
		r.explain(t)
		t.Fatal(err)
	}
	defer k.close(nil)
	for _, run := range runs {
		if row, err = k.once(t.Context(), run); err != nil {
			t.Fatal(err)
		}
	}
	if err := k.finish(t.Context()); err != nil {
		r.explain(t)
		t.Fatal("at the end:", err)
	}
	return row
}

// explain logs why the server has hung up.
func (r *rig) explain(t *testing.T) {
	t.Helper()
	select {
	case err := <-r.failed:
		t.Logf("the server says: %v", err)
	case <-time.After(2 * time.Second):
		t.Log("the server is content")
	}
}

// dialStockCM is dialStock by rdma_cm.
func dialStockCM(t *testing.T, r *rig, p *Params, o stockOptions) (*stockClient, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return dialCM(ctx, r.client, r.flags, r.cm, p, o)
}

// checkServed looks at what the server shows: of one-sided bandwidth what the client told, of SENDs and answers what it
// saw itself, of READs and atomics one at a time nothing.
func checkServed(t *testing.T, r *rig, p *Params, run Run, row *Row) {
	t.Helper()
	if p.op.latency && p.op.echo == echoNone {
		return
	}
	select {
	case served := <-r.rows:
		if served.Bytes != run.Bytes || served.Iterations != row.Iterations || served.PathMTU != row.PathMTU {
			t.Errorf("the server shows %+v, the client %+v", served, row)
		}
		if p.op.latency != (served.latColumns != nil) || p.op.latency == (served.bwColumns != nil) {
			t.Errorf("the server shows other columns: %+v", served)
		}
	case <-time.After(5 * time.Second):
		t.Error("the server shows nothing")
	}
}

// -a: sizes change without a word in write-lat, with barriers in SENDs. The server sees each.
func TestStockAllSizes(t *testing.T) {
	r := newRig(t, roce.Manual)
	for _, known := range []bool{true, false} {
		for _, op := range []string{"write-lat", "send-lat", "send-bw", "write-bw", "read-lat"} {
			p, runs, err := parse(t, []string{op, "-a", "-n", "20"})
			if err != nil {
				t.Fatal(err)
			}
			r.host.Want, r.host.Size = nil, 0
			if known {
				r.host.Want = p
			}
			r.drain()
			const few = 14 // up to 16 KiB
			row := r.measureStock(t, p, stockOptions{all: true}, runs[:few]...)
			checkRow(t, p, runs[few-1], row)
			rows := map[string]int{"write-lat": few, "send-lat": few, "send-bw": few, "write-bw": 1}[op]
			for i := range rows {
				select {
				case served := <-r.rows:
					if want := runs[few-rows+i].Bytes; served.Bytes != want || served.Iterations != 20 {
						t.Errorf("%s: row %d is of %d messages of %d bytes, want %d bytes", op, i, served.Iterations, served.Bytes, want)
					}
				case <-time.After(5 * time.Second):
					t.Fatalf("%s: the server shows %d rows of %d", op, i, rows)
				}
			}
		}
	}
}

// Over IPv6, and with a GID index on one side.
func TestStockIPv6(t *testing.T) {
	r := newRig(t, roce.Auto)
	six := -1
	for _, g := range r.client.GIDs() {
		if g.Kind == roce.GIDIPv6 {
			six = g.Index
		}
	}
	r.host.Flags.GIDIndex = six
	p, runs, err := parse(t, strings.Fields("write-bw -n 50 -s 3000"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dialStock(t, r, p, stockOptions{}); err == nil || !strings.Contains(err.Error(), "one IP version") {
		t.Errorf("IPv4 to IPv6: %v", err)
	}
	<-r.failed
	r.flags = anyGID()
	r.flags.GIDIndex = six
	checkRow(t, p, runs[0], r.measureStock(t, p, stockOptions{}, runs...))
}

// What a session took is free when the client is gone, however it goes.
func TestStockClientVanishes(t *testing.T) {
	for _, progress := range []roce.Progress{roce.Auto, roce.Manual} {
		r := newRig(t, progress)
		for _, args := range []string{"write-lat", "send-lat", "send-bw -q 2", "write-bw"} {
			p, _, err := parse(t, strings.Fields(args))
			if err != nil {
				t.Fatal(err)
			}
			k, err := dialStock(t, r, p, stockOptions{})
			if err != nil {
				t.Fatal(err)
			}
			k.close(nil) // the exchange so far is as good as an interrupted run's
			r.idle(t)
		}
	}
}

// idle waits until the server holds nothing for any client.
func (r *rig) idle(t *testing.T) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		release, err := r.host.Budget.Take(64 << 20)
		if err == nil {
			release()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("memory was not given back: %v", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// The server goes in the midst of a run: the client says so, soon.
func TestStockServerVanishes(t *testing.T) {
	r := newRig(t, roce.Auto)
	for _, args := range []string{"write-lat -D 60", "send-bw -D 60", "read-bw -D 60"} {
		p, runs, err := parse(t, strings.Fields(args))
		if err != nil {
			t.Fatal(err)
		}
		ln, err := exchange.Listen(t.Context(), "", 0)
		if err != nil {
			t.Fatal(err)
		}
		r.addr = ln.Addr().String()
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- (&exchange.Server{Detect: r.host.Greet}).Serve(ctx, ln) }()
		k, err := dialStock(t, r, p, stockOptions{duration: true})
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(200*time.Millisecond, cancel)
		start := time.Now()
		_, err = k.once(t.Context(), runs[0])
		if err == nil || time.Since(start) > 20*time.Second {
			t.Errorf("%s: %v after %v", args, err, time.Since(start))
		}
		k.close(err)
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
}

// drain forgets the rows that a failed test has left.
func (r *rig) drain() {
	for len(r.rows) > 0 {
		<-r.rows
	}
}
