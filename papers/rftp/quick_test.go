package rftp

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/transport/rftp"
)

func TestQuick(t *testing.T) {
	for _, x := range []transfer{
		{path: path{bits: 10e9, rtt: 49 * time.Millisecond}, qps: 1, block: 4 << 20, pool: 128 << 20, warmup: 2*time.Second, time: time.Second},
		{path: path{bits: 10e9, rtt: 49 * time.Millisecond}, qps: 8, block: 4 << 20, pool: 128 << 20, warmup: 2*time.Second, time: time.Second},
		{path: path{bits: 10e9, rtt: 49 * time.Millisecond}, qps: 1, block: 4 << 20, pool: 128 << 20, warmup: 2*time.Second, time: time.Second, mode: rftp.Paper},
		{path: path{bits: 10e9, rtt: 49 * time.Millisecond}, qps: 1, block: 1 << 20, pool: 10 << 20, warmup: 2*time.Second, time: time.Second, mode: rftp.OnDemand},
	} {
		begin := time.Now()
		o, err := x.run(t.Context(), 1)
		if err != nil {
			t.Error(err)
		}
		first := time.Duration(0)
		if len(o.arrivals)>0 { first = o.arrivals[0].at }
		t.Logf("%v: %.3f of the link; first %v; took %v; %+v", &x, x.rate(&o)/float64(x.bits), first, time.Since(begin), o.sent)
	}
}
