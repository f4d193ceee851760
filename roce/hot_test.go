package roce

import (
	"sort"
	"testing"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// TestHotPathDoesNotAllocate: a WRITE posted, carried, executed, acknowledged, completed and polled, both ends in one
// thread.
func TestHotPathDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	a, b := newRig(t, rigConfig{opts: []Option{WithProgress(Manual)}})
	var wcs [4]WC
	sges := []SGE{a.mr.SGE(0, 64)}
	wr := SendWR{Op: OpWrite, Flags: Signaled, SGEs: sges, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
	once := func() {
		if err := a.qp.PostSend(wr); err != nil {
			t.Fatal(err)
		}
		for a.cq.Poll(wcs[:]) == 0 {
			b.cq.Poll(wcs[:])
		}
	}
	if n := testing.AllocsPerRun(2000, once); n != 0 {
		t.Errorf("a WRITE allocates %v times", n)
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
		t.Errorf("a SEND and its receive allocate %v times", n)
	}
}

// benchPair makes two manual ends for benchmarks.
func benchPair(b *testing.B) (x, y *end) {
	return newRig(b, rigConfig{mem: 1 << 20, link: loopback.Config{}, opts: []Option{WithProgress(Manual)}})
}

// BenchmarkWriteLatency is an 8-byte WRITE to and fro, both ends polling memory in one thread: half a round trip.
func BenchmarkWriteLatency(b *testing.B) {
	x, y := benchPair(b)
	var wcs [16]WC
	wr := func(from, to *end) []SendWR {
		return []SendWR{{Op: OpWrite, Inline: make([]byte, 8), RemoteAddr: to.mr.Addr(), RKey: to.mr.RKey()}}
	}
	xy, yx := wr(x, y), wr(y, x)
	times := make([]time.Duration, 0, b.N)
	for i := uint64(1); b.Loop(); i++ {
		start := time.Now()
		ping(b, x, y, xy, i, wcs[:])
		ping(b, y, x, yx, i, wcs[:])
		times = append(times, time.Since(start)/2)
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
	b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
}

// ping writes a number and turns both cranks until it is there.
func ping(b *testing.B, from, to *end, wrs []SendWR, n uint64, wcs []WC) {
	for i := range 8 {
		wrs[0].Inline[i] = byte(n >> (8 * i))
	}
	wrs[0].Flags = 0
	if n%64 == 0 {
		wrs[0].Flags = Signaled
	}
	if err := from.qp.PostSend(wrs...); err != nil {
		b.Fatal(err)
	}
	for to.mr.Load64(0) != n {
		from.cq.Poll(wcs)
		to.cq.Poll(wcs)
	}
}

// BenchmarkWriteRate is 64-byte WRITEs, one in 16 signalled, both ends in one thread: the cost of a message on both sides.
func BenchmarkWriteRate(b *testing.B) { benchWrites(b, 64, 16) }

// BenchmarkWriteBandwidth is 64 KiB WRITEs.
func BenchmarkWriteBandwidth(b *testing.B) { benchWrites(b, 64<<10, 1) }

func benchWrites(b *testing.B, size, every int) {
	x, y := benchPair(b)
	var wcs [64]WC
	list := make([]SendWR, every)
	for i := range list {
		list[i] = SendWR{Op: OpWrite, SGEs: []SGE{x.mr.SGE(0, size)}, RemoteAddr: y.mr.Addr(), RKey: y.mr.RKey()}
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
		y.cq.Poll(wcs[:])
	}
}
