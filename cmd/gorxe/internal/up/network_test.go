package up

import (
	"testing"

	"github.com/gorxe/gorxe/roce"
)

// The monitor reports what has changed, with the fastest queue pairs.
func TestMonitor(t *testing.T) {
	var m monitor
	var c roce.Counters
	asked := 0
	qps := func() []roce.QPStats {
		asked++
		list := make([]roce.QPStats, maxNetworkQPs+2)
		for i := range list {
			list[i] = roce.QPStats{QPN: roce.QPN(i), DeliveryRate: float64(i)}
		}
		return list
	}
	c.SentPkts = 100
	if n := m.check(&c, qps); n != nil || asked != 0 {
		t.Errorf("check() = %+v without data, loss or congestion, want nil", n)
	}
	c.SentBytes = 4096
	if n := m.check(&c, qps); n == nil || n.Sent != 4096 || len(n.QPs) != maxNetworkQPs {
		t.Errorf("check() = %+v after 4096 bytes were sent", n)
	}
	c.SpuriousRetransmits = 1 // reported later than the retransmission
	if n := m.check(&c, qps); n == nil || n.Spurious != 1 || n.Sent != 0 {
		t.Errorf("check() = %+v after a report of a duplicate", n)
	}
	c.Retransmits, c.MarkedPkts = 5, 7
	if n := m.check(&c, qps); n == nil || n.Retransmits != 5 || n.Marked != 7 || n.CNPsSent != 0 ||
		len(n.QPs) != maxNetworkQPs || n.QPs[0].QPN != maxNetworkQPs+1 {
		t.Errorf("check() = %+v", n)
	}
	if n := m.check(&c, qps); n != nil {
		t.Errorf("check() = %+v without a change, want nil", n)
	}
	c.Retransmits, c.SentCNPs, c.HeldPkts = 6, 1, 2
	if n := m.check(&c, qps); n == nil || n.Retransmits != 1 || n.Marked != 0 || n.CNPsSent != 1 ||
		n.Held != 2 {
		t.Errorf("check() = %+v, want only what is new", n)
	}
}
