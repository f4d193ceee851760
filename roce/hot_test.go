package roce

import (
	"context"
	"encoding/binary"
	"runtime"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp/veth"
)

// TestHotPathDoesNotAllocate: a WRITE from post to poll, both devices in one thread.
func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	var wcs [4]WC
	sges := []SGE{a.mr.SGE(0, 64)}
	wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: sges, RemoteAddr: b.mr.Addr(),
		RKey: b.mr.RKey()}
	once := func() {
		if err := a.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		for a.cq.Poll(wcs[:]) == 0 {
			b.cq.Poll(wcs[:])
		}
	}
	if n := testing.AllocsPerRun(2000, once); n != 0 {
		t.Errorf("a WRITE makes %v allocations", n)
	}
	recv := RecvWR{SGEs: []SGE{b.mr.SGE(0, 64)}}
	send := SendWR{Op: OpSend, Flags: Signaled, SGEs: sges}
	if n := testing.AllocsPerRun(2000, func() {
		if err := b.qp.PostRecv(recv); err != nil {
			t.Fatal(err)
		}
		if err := a.qp.PostSend(send); err != nil {
			t.Fatal(err)
		}
		for got := 0; got < 2; {
			got += a.cq.Poll(wcs[:]) + b.cq.Poll(wcs[:])
		}
	}); n != 0 {
		t.Errorf("a SEND and its receive make %v allocations", n)
	}
}

// TestWorkRequestsDoNotEscape: work requests that are written out in the call, with their SGEs,
// cost no allocation.
func TestWorkRequestsDoNotEscape(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	srq, err := b.CreateSRQ(b.pd, SRQConfig{Depth: 4096})
	must(t, err)
	var wcs [4]WC
	if n := testing.AllocsPerRun(1000, func() {
		must(t, b.qp.PostRecv(RecvWR{ID: 1, SGEs: []SGE{b.mr.SGE(0, 64)}}))
		must(t, srq.PostRecv(RecvWR{ID: 1, SGEs: []SGE{b.mr.SGE(0, 64), b.mr.SGE(64, 64)}}))
		must(t, a.qp.PostSend(SendWR{ID: 2, Op: OpSend, Flags: Signaled,
			SGEs: []SGE{a.mr.SGE(0, 32), a.mr.SGE(32, 32)}}))
		for got := 0; got < 2; {
			got += a.cq.Poll(wcs[:]) + b.cq.Poll(wcs[:])
		}
	}); n != 0 {
		t.Errorf("a SEND and its receives make %v allocations, want 0", n)
	}
}

// TestWaitDoesNotAllocate: a CQ.Wait that blocks does not allocate, if its context cannot end.
func TestWaitDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	bothModes(t, func(t *testing.T, p Progress) {
		link := newLink(t, loopback.Config{})
		a, b := newEnd(t, newDevice(t, link, 0, WithProgress(p)), rigConfig{}), newEnd(t,
			newDevice(t, link, 1), rigConfig{})
		connect(t, a.qp, b.qp)
		var wcs [4]WC
		wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: []SGE{a.mr.SGE(0, 64)},
			RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		if n := testing.AllocsPerRun(300, func() {
			if err := a.qp.PostSend(wr); err != nil {
				t.Fatal(err)
			}
			if _, err := a.cq.Wait(context.Background(), wcs[:]); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("a WRITE and its Wait make %v allocations", n)
		}
	})
}

// benchPair returns two endpoints with Manual progress.
func benchPair(b *testing.B) (x, y *end) {
	return newRig(b, rigConfig{mem: 1 << 20, link: loopback.Config{},
		opts: []Option{WithProgress(Manual)}})
}

// BenchmarkWriteLatency measures half the round trip of 8-byte WRITEs, both sides polling memory in
// one thread.
func BenchmarkWriteLatency(b *testing.B) {
	x, y := benchPair(b)
	var wcs [16]WC
	xy, yx := pingWR(x, y), pingWR(y, x)
	times := make([]time.Duration, 0, 1<<20)
	ping := func(from, to *end, wrs []SendWR, n uint64) {
		postPing(b, from, wrs, n)
		for to.mr.Load64(0) != n {
			from.cq.Poll(wcs[:])
			to.cq.Poll(wcs[:])
		}
	}
	for i := uint64(1); b.Loop(); i++ {
		start := time.Now()
		ping(x, y, xy, i)
		ping(y, x, yx, i)
		times = append(times, time.Since(start)/2)
	}
	reportTimes(b, times)
}

func pingWR(from, to *end) []SendWR {
	return []SendWR{{Op: OpWrite, Inline: make([]byte, 8), RemoteAddr: to.mr.Addr(),
		RKey: to.mr.RKey()}}
}

// postPing writes the number n to the peer. One in 64 is signaled.
func postPing(b *testing.B, from *end, wrs []SendWR, n uint64) {
	binary.NativeEndian.PutUint64(wrs[0].Inline, n)
	wrs[0].Flags = 0
	if n%64 == 0 {
		wrs[0].Flags = Signaled
	}
	if err := from.qp.PostSend(wrs...); err != nil {
		b.Fatal(err)
	}
}

func reportTimes(b *testing.B, times []time.Duration) {
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}

// BenchmarkTwoThreads runs both sides in their own threads, over the in-memory link and over AF_XDP
// on a veth pair. The active side has Manual progress. (Two sides with Auto progress that poll
// memory would be four spinning threads.)
func BenchmarkTwoThreads(b *testing.B) {
	active := []Option{WithProgress(Manual)}
	for _, p := range []Progress{Auto, Manual} {
		passive := []Option{WithProgress(p)}
		memory := func(b *testing.B) (x, y *end) {
			link, c := newLink(b, loopback.Config{}), rigConfig{mem: 1 << 20}
			x, y = newEnd(b, newDevice(b, link, 0, active...), c), newEnd(b,
				newDevice(b, link, 1, passive...), c)
			connect(b, x.qp, y.qp)
			return x, y
		}
		veth := func(b *testing.B) (x, y *end) {
			pair := newVeth(b, veth.Options{})
			x = openEnd(b, &pair.A, XDPOptions{}, rigConfig{mem: 1 << 20, opts: active})
			y = openEnd(b, &pair.B, XDPOptions{}, rigConfig{mem: 1 << 20, opts: passive})
			connect(b, x.qp, y.qp)
			return x, y
		}
		for _, r := range []struct {
			name string
			rig  func(*testing.B) (x, y *end)
		}{{"memory", memory}, {"veth", veth}} {
			name := "passive-" + p.String() + "/" + r.name
			if p == Manual {
				b.Run(name+"/write-lat-8", func(b *testing.B) { pingPong(b, r.rig) })
			}
			b.Run(name+"/read-lat-8", func(b *testing.B) { reads(b, r.rig) })
			b.Run(name+"/write-rate-64",
				func(b *testing.B) { x, y := r.rig(b); stream(b, x, y, 64, 16) })
			b.Run(name+"/write-bw-64K",
				func(b *testing.B) { x, y := r.rig(b); stream(b, x, y, 64<<10, 1) })
		}
	}
}

// reads measures the round trip of 8-byte READs.
func reads(b *testing.B, rig func(*testing.B) (x, y *end)) {
	x, y := rig(b)
	times := make([]time.Duration, 0, b.N)
	wrs := []SendWR{{Op: OpRead, Flags: Signaled, SGEs: []SGE{x.mr.SGE(0, 8)},
		RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}}
	b.ResetTimer()
	inBackground(y, func() {}, func() {
		var wcs [1]WC
		for range b.N {
			start := time.Now()
			if err := x.qp.PostSend(wrs...); err != nil {
				b.Fatal(err)
			}
			for x.cq.Poll(wcs[:]) == 0 {
			}
			times = append(times, time.Since(start))
		}
	})
	reportTimes(b, times)
}

// pingPong measures half the round trip of 8-byte WRITEs, each side polling its memory.
func pingPong(b *testing.B, rig func(*testing.B) (x, y *end)) {
	x, y := rig(b)
	n := uint64(b.N)
	times := make([]time.Duration, 0, b.N)
	side := func(me, peer *end, first bool) {
		var wcs [16]WC
		wrs := pingWR(me, peer)
		for i := uint64(1); i <= n; i++ {
			start := time.Now()
			if first {
				postPing(b, me, wrs, i)
			}
			for me.mr.Load64(0) != i {
				me.cq.Poll(wcs[:])
			}
			if !first {
				postPing(b, me, wrs, i)
			} else {
				times = append(times, time.Since(start)/2)
			}
		}
	}
	b.ResetTimer()
	inBackground(y, func() { side(y, x, false) }, func() { side(x, y, true) })
	reportTimes(b, times)
}

// inBackground runs the passive side while the active side needs it.
func inBackground(passive *end, there, here func()) {
	stop := make(chan struct{})
	var done sync.WaitGroup
	done.Add(1)
	go func() {
		defer done.Done()
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		there()
		for {
			select {
			case <-stop:
				return
			default:
				if passive.Progress(); !passive.manual {
					time.Sleep(time.Millisecond)
				}
			}
		}
	}()
	runtime.LockOSThread()
	here()
	runtime.UnlockOSThread()
	close(stop)
	done.Wait()
}

// stream keeps 128 WRITEs outstanding; one in every is signaled.
func stream(b *testing.B, x, y *end, size, every int) {
	inBackground(y, func() {}, func() { writes(b, x, y, size, every, func() {}) })
}

// BenchmarkWriteRate sends 64-byte WRITEs, one in 16 signaled, both sides in one thread: the cost
// of a message on both sides.
func BenchmarkWriteRate(b *testing.B) { benchWrites(b, 64, 16) }

// BenchmarkWriteBandwidth sends 64 KiB WRITEs.
func BenchmarkWriteBandwidth(b *testing.B) { benchWrites(b, 64<<10, 1) }

func benchWrites(b *testing.B, size, every int) {
	x, y := benchPair(b)
	writes(b, x, y, size, every, func() { y.Progress() })
}

// writes posts b.N WRITEs from x to y, 128 outstanding, one in every signaled. It calls peer once
// per round.
func writes(b *testing.B, x, y *end, size, every int, peer func()) {
	var wcs [64]WC
	list := make([]SendWR, every)
	for i := range list {
		list[i] = SendWR{Op: OpWrite, SGEs: []SGE{x.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(),
			RKey: y.mr.RKey()}
	}
	list[every-1].Flags = Signaled
	depth := 128 / every
	b.SetBytes(int64(size))
	out, done := 0, 0
	b.ResetTimer()
	for total := (b.N + every - 1) / every; done < total; {
		for out < depth && done+out < total {
			if err := x.qp.PostSend(list...); err != nil {
				b.Fatal(err)
			}
			out++
		}
		n := x.cq.Poll(wcs[:])
		out, done = out-n, done+n
		peer()
	}
}
