package messenger_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/messenger"
)

// The benchmarks compare this package with the same work on package roce alone, on a link in memory
// and on a veth pair.

const benchSize = 64

func eachBed(b *testing.B, f func(b *testing.B, bed *testbed.Testbed)) {
	for name, c := range map[string]testbed.Config{"memory": {}, "veth": {Veth: true}} {
		b.Run(name, func(b *testing.B) {
			bed, err := testbed.New(c)
			if testbed.Unavailable(err) {
				b.Skip(err)
			} else if err != nil {
				b.Fatal(err)
			}
			defer bed.Close()
			f(b, bed)
		})
	}
}

// cpuTime returns the processor time of the process so far, of both sides and their devices. On a
// host with other load it says more than the elapsed time.
func cpuTime(b *testing.B) time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &r); err != nil {
		b.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// measure starts the measurement, and returns a function that ends it.
func measure(b *testing.B) (end func()) {
	b.ReportAllocs()
	b.ResetTimer()
	before := cpuTime(b)
	return func() {
		b.StopTimer()
		b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
	}
}

// raw is a connected pair of endpoints with posted receives.
type raw struct {
	x, y *endpoint.Endpoint
}

const rawDepth = 256

func newRaw(b *testing.B, bed *testbed.Testbed) *raw {
	r := &raw{}
	var err error
	c := endpoint.Config{Memory: 1 << 20,
		QP:     roce.QPConfig{SendDepth: rawDepth, RecvDepth: 2 * rawDepth},
		SendCQ: rawDepth, RecvCQ: 2 * rawDepth}
	for i, e := range []**endpoint.Endpoint{&r.x, &r.y} {
		if *e, err = endpoint.New(bed.Dev[i], c); err != nil {
			b.Fatal(err)
		}
	}
	ctx := context.Background()
	for _, p := range [][2]*endpoint.Endpoint{{r.x, r.y}, {r.y, r.x}} {
		if err := p[0].QP.Connect(ctx, p[1].QP.Local(), roce.ConnectOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	for _, e := range []*endpoint.Endpoint{r.x, r.y} {
		for i := range 2 * rawDepth {
			r.post(b, e, uint64(i))
		}
	}
	return r
}

func (r *raw) close() { _, _ = r.x.Close(), r.y.Close() }

func (r *raw) post(b *testing.B, e *endpoint.Endpoint, id uint64) {
	if err := e.QP.PostRecv(roce.RecvWR{ID: id,
		SGEs: []roce.SGE{e.MR.SGE(int(id)*benchSize, benchSize)}}); err != nil {
		b.Error(err)
	}
}

// drain polls n completions, and calls f for each.
func (r *raw) drain(b *testing.B, cq *roce.CQ, n int, f func(wc *roce.WC)) {
	var wcs [64]roce.WC
	ctx := context.Background()
	for n > 0 {
		k, err := cq.Wait(ctx, wcs[:])
		if err != nil {
			b.Error(err)
			return
		}
		for i := range wcs[:k] {
			if wcs[i].Status != roce.Success {
				b.Error(wcs[i].Status)
				return
			}
			f(&wcs[i])
		}
		n -= k
	}
}

// The receiver grants credits with a SEND for each half of its buffers, as any program must.
func BenchmarkMessagesRaw(b *testing.B) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		r := newRaw(b, bed)
		defer r.close()
		var wg sync.WaitGroup
		end := measure(b)
		wg.Go(func() {
			n := 0
			r.drain(b, r.y.RecvCQ, b.N, func(wc *roce.WC) {
				r.post(b, r.y, wc.ID)
				if n++; n == rawDepth/2 {
					n = 0
					grant := roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled}
					if err := r.y.QP.PostSend(grant); err != nil {
						b.Error(err)
					}
					var wcs [4]roce.WC
					r.y.CQ.Poll(wcs[:])
				}
			})
		})
		wr := roce.SendWR{Op: roce.OpSend, Inline: make([]byte, benchSize)}
		const every = rawDepth / 4
		var wcs [16]roce.WC
		free, credits := rawDepth, rawDepth
		for i := range b.N {
			for free == 0 {
				n, err := r.x.CQ.Wait(context.Background(), wcs[:])
				if err != nil {
					b.Fatal(err)
				}
				free += n * every
			}
			for credits == 0 {
				n, err := r.x.RecvCQ.Wait(context.Background(), wcs[:])
				if err != nil {
					b.Fatal(err)
				}
				for _, wc := range wcs[:n] {
					r.post(b, r.x, wc.ID)
				}
				credits += n * rawDepth / 2
			}
			wr.Flags = 0
			if i%every == every-1 {
				wr.Flags = roce.Signaled
			}
			if err := r.x.QP.PostSend(wr); err != nil {
				b.Fatal(err)
			}
			free--
			credits--
		}
		wg.Wait()
		end()
	})
}

func BenchmarkMessages(b *testing.B) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		c := messenger.Config{MaxMessage: 1024, Depth: rawDepth}
		x, y := connect(b, bed, c, c)
		ctx := context.Background()
		var wg sync.WaitGroup
		end := measure(b)
		wg.Go(func() {
			n := 0
			for _, err := range y.Messages(ctx) {
				if err != nil {
					b.Error(err)
				}
				if n++; n == b.N {
					break
				}
			}
		})
		msg := make([]byte, benchSize)
		for range b.N {
			if err := x.Send(ctx, msg); err != nil {
				b.Fatal(err)
			}
		}
		wg.Wait()
		end()
		_, _ = x.Close(), y.Close()
	})
}

// callers runs call b.N times in n goroutines.
func callers(b *testing.B, n int, call func(g int) error) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	for g := range n {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := call(g); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A client calls, and the server answers with the same bytes.
func benchCalls(b *testing.B, goroutines int) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		c := messenger.Config{MaxMessage: 1024, Depth: rawDepth}
		x, y := connect(b, bed, c, c)
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = y.Handle(ctx, echo) })
		msg := make([]byte, benchSize)
		end := measure(b)
		callers(b, goroutines, func(int) error {
			m, err := x.Call(ctx, msg)
			m.Release()
			return err
		})
		end()
		cancel()
		wg.Wait()
		_, _ = x.Close(), y.Close()
	})
}

func BenchmarkCalls1(b *testing.B)  { benchCalls(b, 1) }
func BenchmarkCalls64(b *testing.B) { benchCalls(b, 64) }

// The same on verbs: one goroutine of the client polls and wakes the callers by their channels.
func benchCallsRaw(b *testing.B, goroutines int) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		r := newRaw(b, bed)
		defer r.close()
		msg := make([]byte, benchSize)
		var mu sync.Mutex // the client's send queue
		send := func(e *endpoint.Endpoint, n *int, imm uint32) {
			wr := roce.SendWR{Op: roce.OpSendImm, Imm: imm, Inline: msg}
			var wcs [4]roce.WC
			if *n++; *n%(rawDepth/4) == 0 {
				wr.Flags = roce.Signaled
				e.CQ.Poll(wcs[:])
			}
			if err := e.QP.PostSend(wr); err != nil {
				b.Error(err)
			}
		}
		answers := make([]chan struct{}, goroutines)
		for i := range answers {
			answers[i] = make(chan struct{}, 1)
		}
		end := measure(b)
		var wg sync.WaitGroup
		wg.Go(func() {
			n := 0
			r.drain(b, r.y.RecvCQ, b.N, func(wc *roce.WC) {
				send(r.y, &n, wc.Imm)
				r.post(b, r.y, wc.ID)
			})
		})
		wg.Go(func() {
			r.drain(b, r.x.RecvCQ, b.N, func(wc *roce.WC) {
				r.post(b, r.x, wc.ID)
				answers[wc.Imm] <- struct{}{}
			})
		})
		n := 0
		callers(b, goroutines, func(g int) error {
			mu.Lock()
			send(r.x, &n, uint32(g))
			mu.Unlock()
			<-answers[g]
			return nil
		})
		wg.Wait()
		end()
	})
}

func BenchmarkCalls1Raw(b *testing.B)  { benchCallsRaw(b, 1) }
func BenchmarkCalls64Raw(b *testing.B) { benchCallsRaw(b, 64) }

// One goroutine keeps 64 requests outstanding, without callers.
func BenchmarkRequestsRaw(b *testing.B) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		r := newRaw(b, bed)
		defer r.close()
		var wg sync.WaitGroup
		msg := make([]byte, benchSize)
		send := func(e *endpoint.Endpoint, n *int) {
			wr := roce.SendWR{Op: roce.OpSend, Inline: msg}
			var wcs [4]roce.WC
			const every = rawDepth / 4
			if *n%every == every-1 {
				wr.Flags = roce.Signaled
			}
			e.CQ.Poll(wcs[:])
			*n++
			if err := e.QP.PostSend(wr); err != nil {
				b.Error(err)
			}
		}
		end := measure(b)
		wg.Go(func() {
			n := 0
			r.drain(b, r.y.RecvCQ, b.N, func(wc *roce.WC) {
				send(r.y, &n)
				r.post(b, r.y, wc.ID)
			})
		})
		n := 0
		for range min(64, b.N) {
			send(r.x, &n)
		}
		r.drain(b, r.x.RecvCQ, b.N, func(wc *roce.WC) {
			r.post(b, r.x, wc.ID)
			if n < b.N {
				send(r.x, &n)
			}
		})
		wg.Wait()
		end()
	})
}

// oneSided measures operations of 64 bytes, in two lists of 128.
func oneSided(b *testing.B, op roce.Op) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		c := messenger.Config{MaxMessage: 1024, Depth: rawDepth}
		x, y := connect(b, bed, c, c)
		mr := memory(b, y)
		ops := make([]messenger.Op, 128)
		for i := range ops {
			ops[i] = messenger.Op{Op: op, Local: make([]byte, benchSize), Remote: mr.Remote()}
		}
		end := measure(b)
		var left atomic.Int64
		left.Store(int64(b.N))
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				ops := slices.Clone(ops)
				for left.Add(-int64(len(ops))) >= 0 {
					if err := x.Do(context.Background(), ops); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		end()
		_ = mr.Close()
		_, _ = x.Close(), y.Close()
	})
}

// oneSidedRaw does the same with one goroutine: it fills the work requests, which programs do not
// know in advance, and copies what READs return to the program's memory.
func oneSidedRaw(b *testing.B, op roce.Op) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		r := newRaw(b, bed)
		defer r.close()
		var wrs [128]roce.SendWR
		var sges [len(wrs)]roce.SGE
		local := make([][]byte, len(wrs))
		for i := range local {
			local[i] = make([]byte, benchSize)
		}
		remote := r.y.MR.Remote()
		post := func(list int) {
			for i := range wrs {
				wrs[i] = roce.SendWR{ID: uint64(list), Op: op, RemoteAddr: remote.Addr, RKey: remote.RKey}
				if op == roce.OpWrite {
					wrs[i].Inline = local[i]
				} else {
					sges[i] = r.x.MR.SGE((list*len(wrs)+i)*benchSize, benchSize)
					wrs[i].SGEs = sges[i : i+1]
				}
			}
			wrs[len(wrs)-1].Flags = roce.Signaled
			if err := r.x.QP.PostSend(wrs[:]...); err != nil {
				b.Fatal(err)
			}
		}
		end := measure(b)
		left := b.N / len(wrs)
		for list := range min(2, left) {
			post(list)
			left--
		}
		r.drain(b, r.x.CQ, b.N/len(wrs), func(wc *roce.WC) {
			if op == roce.OpRead {
				data := r.x.MR.Bytes()[int(wc.ID)*len(wrs)*benchSize:]
				for i := range local {
					copy(local[i], data[i*benchSize:])
				}
			}
			if left > 0 {
				left--
				post(int(wc.ID))
			}
		})
		end()
	})
}

func BenchmarkWrites(b *testing.B)    { oneSided(b, roce.OpWrite) }
func BenchmarkWritesRaw(b *testing.B) { oneSidedRaw(b, roce.OpWrite) }
func BenchmarkReads(b *testing.B)     { oneSided(b, roce.OpRead) }
func BenchmarkReadsRaw(b *testing.B)  { oneSidedRaw(b, roce.OpRead) }

// 64 goroutines write 64 bytes each.
func BenchmarkWriteAt64(b *testing.B) {
	eachBed(b, func(b *testing.B, bed *testbed.Testbed) {
		c := messenger.Config{MaxMessage: 1024, Depth: rawDepth}
		x, y := connect(b, bed, c, c)
		mr := memory(b, y)
		ctx, p := context.Background(), make([]byte, benchSize)
		end := measure(b)
		callers(b, 64, func(int) error { return x.WriteAt(ctx, p, mr.Remote(), 0) })
		end()
		_ = mr.Close()
		_, _ = x.Close(), y.Close()
	})
}
