package xdpbench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

func ends(t testing.TB, mtu int, o xdp.Options) (a, b End) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: AF_XDP and network namespaces require root")
	}
	pair, err := veth.New(veth.Options{MTU: mtu})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pair.Close() })
	open := func(e *veth.End, cpu int) End {
		o := o
		o.NetNS = e.Fd()
		p, err := xdp.Open(e.Iface, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Close() })
		return End{Port: p, Addr: e.IPv4.Addr(), CPU: cpu}
	}
	return open(&pair.A, 0), open(&pair.B, -1)
}

// No frame is lost on an idle pair, and the results are consistent.
func TestOneWayDelivers(t *testing.T) {
	a, b := ends(t, 4200, xdp.Options{})
	for _, payload := range []int{64, 4096} {
		r, err := OneWay(a, b,
			OneWayConfig{Payload: payload, Duration: 50 * time.Millisecond,
				Spin: 20 * time.Microsecond})
		if err != nil {
			t.Fatal(err)
		}
		if r.Delivered == 0 || r.Delivered > r.Sent || r.PPS() <= 0 || r.SenderCPU <= 0 {
			t.Errorf("payload %d: %+v", payload, r)
		}
	}
}

func TestPingPongMeasures(t *testing.T) {
	a, b := ends(t, 1500, xdp.Options{})
	for _, spin := range []time.Duration{-1, 0, 20 * time.Microsecond} {
		l, err := PingPong(a, b, PingPongConfig{Payload: 64, Rounds: 200, Warmup: 20, Spin: spin})
		if err != nil {
			t.Fatal(err)
		}
		if l.Rounds != 200 || l.Min <= 0 || l.P50 < l.Min || l.P99 < l.P50 || l.Max < l.P99 {
			t.Errorf("spin %v: %+v", spin, l)
		}
	}
}

// An invalid payload size is refused before anything is sent.
func TestPayloadBounds(t *testing.T) {
	a, b := ends(t, 1500, xdp.Options{})
	for _, n := range []int{0, MinPayload - 1, 1500} {
		if _, err := OneWay(a, b,
			OneWayConfig{Payload: n, Duration: time.Millisecond}); err == nil {
			t.Errorf("payload of %d bytes was accepted", n)
		}
	}
}

// BenchmarkOneWay reports delivered frames per second. The sender runs on CPU 0, the receiver on
// CPU 1.
func BenchmarkOneWay(bm *testing.B) {
	for _, mode := range []xdp.Mode{xdp.Native, xdp.Generic} {
		for _, payload := range []int{64, 1024, 2048, 4096} {
			bm.Run(fmt.Sprintf("%v/%d", mode, payload), func(bm *testing.B) {
				a, b := ends(bm, 4200, xdp.Options{Mode: mode})
				b.CPU = 1
				for bm.Loop() {
					r, err := OneWay(a, b,
						OneWayConfig{Payload: payload, Duration: 200 * time.Millisecond, Spin: -1})
					if err != nil {
						bm.Fatal(err)
					}
					bm.ReportMetric(r.PPS()/1e3, "kpps")
					bm.ReportMetric(r.Gbps(), "Gb/s")
					bm.ReportMetric(r.Loss()*100, "%lost")
				}
			})
		}
	}
}

// BenchmarkPingPong reports round-trip times with both sides spinning on their own CPUs or both
// blocking.
func BenchmarkPingPong(bm *testing.B) {
	for _, mode := range []xdp.Mode{xdp.Native, xdp.Generic} {
		for _, how := range []struct {
			name string
			spin time.Duration
		}{{"spin", -1}, {"spin20us", 20 * time.Microsecond}, {"block", 0}} {
			for _, payload := range []int{64, 1024, 4096} {
				bm.Run(fmt.Sprintf("%v/%s/%d", mode, how.name, payload), func(bm *testing.B) {
					a, b := ends(bm, 4200, xdp.Options{Mode: mode})
					b.CPU = 1
					for bm.Loop() {
						l, err := PingPong(a, b,
							PingPongConfig{Payload: payload, Rounds: 10000, Warmup: 1000,
								Spin: how.spin})
						if err != nil {
							bm.Fatal(err)
						}
						bm.ReportMetric(float64(l.P50.Nanoseconds())/1e3, "p50-us")
						bm.ReportMetric(float64(l.P99.Nanoseconds())/1e3, "p99-us")
					}
				})
			}
		}
	}
}
