package rsocket

import (
	"context"
	"flag"
	"io"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/roce"
)

// The benchmarks compare a Conn with SENDs on the same kind of link, as perf send-bw and send-lat
// measure them: run them together, with -bench and -count.

var benchModes = []roce.Progress{roce.Auto, roce.Manual}

// onVeth selects AF_XDP on a veth pair instead of a link in memory.
var onVeth = flag.Bool("veth", false, "run the benchmarks on a veth pair (root)")

func benchBed(b *testing.B, p roce.Progress) *testbed.Testbed {
	return newTestbed(b, testbed.Config{Veth: *onVeth,
		Options: []roce.Option{roce.WithProgress(p)}})
}

// reportCPU reports the CPU time of all threads per operation, which other programs disturb less
// than the elapsed time.
func reportCPU(b *testing.B) {
	before := cpuTime(b)
	b.Cleanup(func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") })
}

func cpuTime(b *testing.B) time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchPair returns a connection. With manual progress, the goroutine of an open Listener would
// also run the device, and every message would pass from it to the reader.
func benchPair(b *testing.B, bed *testbed.Testbed) (client, server *Conn) {
	l := listenOn(b, bed, Config{})
	client, server = dial(b, bed, l, Config{})
	check(b, l.Close())
	return client, server
}

const benchSize = 64 << 10

func BenchmarkBandwidth(b *testing.B) {
	for _, p := range benchModes {
		b.Run("rsocket/"+p.String(), func(b *testing.B) { benchStream(b, p, false) })
		b.Run("rsocket-io.Copy/"+p.String(), func(b *testing.B) { benchStream(b, p, true) })
		b.Run("SEND/"+p.String(), func(b *testing.B) { benchSend(b, p) })
	}
}

// endless is a source without a copy, and a sink.
type endless struct{ left int }

func (e *endless) Read(p []byte) (int, error) {
	n := min(len(p), e.left)
	e.left -= n
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

func benchStream(b *testing.B, p roce.Progress, direct bool) {
	bed := benchBed(b, p)
	client, server := benchPair(b, bed)
	done := make(chan error, 1)
	go func() {
		if direct {
			_, err := server.WriteTo(discard{})
			done <- err
			return
		}
		buf := make([]byte, benchSize)
		for {
			if _, err := server.Read(buf); err != nil {
				done <- err
				return
			}
		}
	}()
	buf := make([]byte, benchSize)
	b.SetBytes(benchSize)
	b.ResetTimer()
	reportCPU(b)
	if direct {
		_, _ = client.ReadFrom(&endless{b.N * benchSize})
	} else {
		for range b.N {
			if _, err := client.Write(buf); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := client.CloseWrite(); err != nil {
		b.Fatal(err)
	}
	if err := <-done; err != nil && err != io.EOF {
		b.Fatal(err)
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// verbsSide is one side of a connection without a stream.
type verbsSide struct {
	dev *roce.Device
	cq  *roce.CQ
	qp  *roce.QP
	mr  *roce.MR
}

func verbsPair(b *testing.B, bed *testbed.Testbed) (s [2]verbsSide) {
	for i, d := range bed.Dev {
		s[i].dev = d
		pd, err := d.AllocPD()
		if err != nil {
			b.Fatal(err)
		}
		if s[i].mr, err = pd.AllocMR(benchSize, roce.LocalWrite); err != nil {
			b.Fatal(err)
		}
		if s[i].cq, err = d.CreateCQ(2 * benchDepth); err != nil {
			b.Fatal(err)
		}
		if s[i].qp, err = d.CreateQP(pd, roce.QPConfig{SendCQ: s[i].cq, SendDepth: benchDepth,
			RecvDepth: benchDepth}); err != nil {
			b.Fatal(err)
		}
		for range benchDepth {
			s[i].recv(b)
		}
	}
	l, err := bed.Dev[1].Listen(netip.AddrPort{}, roce.ListenOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	ctx := context.Background()
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			_, err = r.Accept(ctx, s[1].qp, roce.AcceptOptions{})
		}
		accepted <- err
	}()
	if _, err := bed.Dev[0].Dial(ctx, l.Addr(), s[0].qp, roce.DialOptions{}); err != nil {
		b.Fatal(err)
	}
	if err := <-accepted; err != nil {
		b.Fatal(err)
	}
	return s
}

const benchDepth = 64

func (s *verbsSide) recv(b *testing.B) {
	if err := s.qp.PostRecv(roce.RecvWR{SGEs: []roce.SGE{s.mr.SGE(0, benchSize)}}); err != nil {
		b.Error(err)
	}
}

func (s *verbsSide) send(b *testing.B, n int) {
	if err := s.qp.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled,
		SGEs: []roce.SGE{s.mr.SGE(0, n)}}); err != nil {
		b.Error(err)
	}
}

// await takes completions until n receives are complete, and returns the number of others.
func (s *verbsSide) await(b *testing.B, receives, sends int) (received, sent int) {
	var wcs [benchDepth]roce.WC
	for received < receives || sent < sends {
		n, err := s.cq.Wait(context.Background(), wcs[:])
		if err != nil {
			b.Error(err)
			return
		}
		for i := range wcs[:n] {
			if wcs[i].Opcode == roce.WCRecv {
				received++
				s.recv(b)
			} else {
				sent++
			}
		}
	}
	return received, sent
}

func benchSend(b *testing.B, p roce.Progress) {
	s := verbsPair(b, benchBed(b, p))
	b.SetBytes(benchSize)
	b.ResetTimer()
	reportCPU(b)
	done := make(chan struct{})
	go func() {
		s[1].await(b, b.N, 0)
		close(done)
		s[1].serve(b)
	}()
	free := benchDepth / 2
	for range b.N {
		if free == 0 {
			_, free = s[0].await(b, 0, 1)
		}
		s[0].send(b, benchSize)
		free--
	}
	s[0].serveUntil(done)
}

// serve answers the peer until the benchmark ends: with manual progress nothing else does.
func (s *verbsSide) serve(b *testing.B) { s.serveUntil(b.Context().Done()) }

func (s *verbsSide) serveUntil(done <-chan struct{}) {
	for {
		select {
		case <-done:
			return
		default:
			s.dev.Progress()
		}
	}
}

// BenchmarkLatency measures round trips of 8 bytes.
func BenchmarkLatency(b *testing.B) {
	for _, p := range benchModes {
		b.Run("rsocket/"+p.String(), func(b *testing.B) {
			bed := benchBed(b, p)
			client, server := benchPair(b, bed)
			done := make(chan error, 1)
			go func() {
				_, err := io.Copy(struct{ io.Writer }{server}, struct{ io.Reader }{server})
				done <- err
			}()
			buf := make([]byte, 8)
			b.ReportAllocs()
			b.ResetTimer()
			reportCPU(b)
			for range b.N {
				if _, err := client.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(client, buf); err != nil {
					b.Fatal(err)
				}
			}
			_ = client.Close()
			<-done
		})
		b.Run("SEND/"+p.String(), func(b *testing.B) {
			s := verbsPair(b, benchBed(b, p))
			go func() {
				for range b.N {
					s[1].await(b, 1, 0)
					s[1].send(b, 8)
				}
				s[1].serve(b)
			}()
			b.ResetTimer()
			reportCPU(b)
			for range b.N {
				s[0].send(b, 8)
				s[0].await(b, 1, 0)
			}
		})
	}
}
