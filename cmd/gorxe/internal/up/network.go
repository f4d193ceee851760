package up

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// networkCheck is the interval between two readings of the counters about the network.
const networkCheck = 5 * time.Second

// network is what the device has sent and what it has seen of loss and congestion since the last
// event network, under the names of the counters. Events without any are left out.
type network struct {
	Sent        uint64 `json:"sent_bytes"`
	Retransmits uint64 `json:"retransmits"`
	Spurious    uint64 `json:"spurious_retransmits"`
	Marked      uint64 `json:"rcvd_ecn_marked"`
	CNPsSent    uint64 `json:"sent_cnps"`
	CNPsRcvd    uint64 `json:"rcvd_cnps"`
	Held        uint64 `json:"held_pkts"`
	Dropped     uint64 `json:"reorder_drops"`

	// The RC queue pairs with the highest delivery rates, at most maxNetworkQPs.
	QPs []roce.QPStats `json:"qps,omitempty"`
}

const maxNetworkQPs = 8

func totals(c *roce.Counters) network {
	return network{
		Sent: c.SentBytes, Retransmits: c.Retransmits, Spurious: c.SpuriousRetransmits, Marked: c.MarkedPkts,
		CNPsSent: c.SentCNPs, CNPsRcvd: c.RcvdCNPs, Held: c.HeldPkts, Dropped: c.ReorderDrops,
	}
}

// monitor turns growing counters into events.
type monitor struct{ last network }

// check returns what has happened since the last call, or nil if nothing has.
func (m *monitor) check(c *roce.Counters, qps func() []roce.QPStats) *network {
	now := totals(c)
	n := network{
		Sent:        now.Sent - m.last.Sent,
		Retransmits: now.Retransmits - m.last.Retransmits, Spurious: now.Spurious - m.last.Spurious,
		Marked: now.Marked - m.last.Marked, CNPsSent: now.CNPsSent - m.last.CNPsSent,
		CNPsRcvd: now.CNPsRcvd - m.last.CNPsRcvd, Held: now.Held - m.last.Held,
		Dropped: now.Dropped - m.last.Dropped,
	}
	m.last = now
	if n.Sent+n.Retransmits+n.Spurious+n.Marked+n.CNPsSent+n.CNPsRcvd+n.Held+n.Dropped == 0 {
		return nil
	}
	n.QPs = qps()
	slices.SortStableFunc(n.QPs, func(a, b roce.QPStats) int {
		return cmp.Compare(b.DeliveryRate, a.DeliveryRate)
	})
	n.QPs = n.QPs[:min(len(n.QPs), maxNetworkQPs)]
	return &n
}

// now prints an event if there is something to report.
func (m *monitor) now(dev *roce.Device, show *printer) {
	c := dev.Counters()
	if n := m.check(&c, dev.QPStats); n != nil {
		show.print(line{Event: "network", Network: n}, func() {})
	}
}

// run prints events until ctx ends. Only --json shows them.
func (m *monitor) run(ctx context.Context, dev *roce.Device, show *printer) {
	every(ctx, networkCheck, func() { m.now(dev, show) })
}
