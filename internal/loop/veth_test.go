package loop_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// On AF_XDP with a queue below the socket, an urgent message is delivered within a few frames, and
// without the bound only after everything that the bulk messages have queued.
func TestUrgentMessageOnVeth(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: creates veth pairs")
	}
	var with, without time.Duration
	for range 3 { // on a busy machine, the threads may wait for a processor for longer
		with = urgentDelay(t, 41, roce.WithBacklogLimit(0))
		without = urgentDelay(t, 9, roce.WithBacklogLimit(roce.NoBacklogLimit))
		t.Logf("median delay with bulk data at 100 Mbit/s: %v with the bound, %v without", with,
			without)
		if with < without/4 {
			return
		}
	}
	t.Errorf("the median delay is %v with the bound and %v without, want less than a quarter", with,
		without)
}

// urgentDelay returns the median time until a WRITE of 1 KiB in class 7 is acknowledged, while
// WRITEs in class 0 keep a link of 100 Mbit/s busy.
func urgentDelay(t *testing.T, samples int, o ...roce.Option) time.Duration {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	bed, err := testbed.New(testbed.Config{Veth: true, Rate: 100_000_000, Options: o})
	if testbed.Unavailable(err) {
		t.Skip(err)
	}
	must(err)
	defer func() { must(bed.Close()) }()
	const size, depth = 256 << 10, 8
	join := func(class int) (local, remote *endpoint.Endpoint) {
		var e [2]*endpoint.Endpoint
		for i := range e {
			e[i], err = endpoint.New(bed.Dev[i], endpoint.Config{Memory: size,
				QP: roce.QPConfig{Class: class}})
			must(err)
		}
		must(endpoint.Connect(t.Context(), e[0], e[1], roce.ConnectOptions{}))
		return e[0], e[1]
	}
	post := func(from, to *endpoint.Endpoint, n int) {
		remote := to.MR.Remote()
		must(from.QP.PostSend(roce.SendWR{Op: roce.OpWrite, Flags: roce.Signaled,
			SGEs: []roce.SGE{from.MR.SGE(0, n)}, RemoteAddr: remote.Addr, RKey: remote.RKey}))
	}
	await := func(cq *roce.CQ) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var wcs [1]roce.WC
		if _, err := cq.Wait(ctx, wcs[:]); err != nil || wcs[0].Status != roce.Success {
			t.Fatal(err, wcs[0])
		}
	}
	bulk, bulkPeer := join(0)
	urgent, urgentPeer := join(7)
	for range depth {
		post(bulk, bulkPeer, size)
	}
	await(bulk.CQ) // the window is open now
	var delays []time.Duration
	for len(delays) < samples {
		var wcs [depth]roce.WC
		for range bulk.CQ.Poll(wcs[:]) {
			post(bulk, bulkPeer, size)
		}
		start := time.Now()
		post(urgent, urgentPeer, 1024)
		await(urgent.CQ)
		delays = append(delays, time.Since(start))
		time.Sleep(time.Millisecond) // the queue fills again
	}
	for _, e := range []*endpoint.Endpoint{bulk, bulkPeer, urgent, urgentPeer} {
		must(e.Close())
	}
	slices.Sort(delays)
	return delays[len(delays)/2]
}
