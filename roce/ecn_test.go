package roce

import (
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
)

// countECN counts the frames on one direction of a link by operation and ECN bits.
func countECN(link *loopback.Link, from, to int) map[bth.Operation]*[4]int {
	seen := map[bth.Operation]*[4]int{}
	dec, p := new(frame.Decoder), new(bth.Packet)
	link.SetFilter(from, to, func(f []byte) loopback.Action {
		if dec.Decode(f, p) != frame.ReasonOK {
			return loopback.Pass
		}
		if seen[p.Info.Op] == nil {
			seen[p.Info.Op] = new([4]int)
		}
		seen[p.Info.Op][p.TrafficClass&3]++
		return loopback.Pass
	})
	return seen
}

// RC packets are sent with ECT(0). A congested switch marks them, and marked data is answered with
// CNPs that the sender counts. A traffic class changes nothing.
func TestECN(t *testing.T) {
	for class, kind := range []GIDKind{GIDIPv4, GIDIPv6, GIDIPv4} {
		link := newLink(t, loopback.Config{Virtual: true, Seed: 1,
			Plan: loopback.Plan{Delay: 5 * time.Microsecond}})
		var ends [2]*end
		for i := range ends {
			must(t, link.SetBottleneck(i, loopback.Bottleneck{Bandwidth: 1e9, Queue: 10 << 20,
				MarkMin: 1, MarkMax: 1}))
			d := newDevice(t, link, i, WithExpert(Expert{Clock: link.Now}))
			index := slices.IndexFunc(d.GIDs(), func(g GIDEntry) bool { return g.Kind == kind })
			ends[i] = newEnd(t, d, rigConfig{mem: 1 << 20, qp: QPConfig{GIDIndex: &index,
				Class: class}})
		}
		a, b := ends[0], ends[1]
		connect(t, a.qp, b.qp)
		sent, answers := countECN(link, 0, 1), countECN(link, 1, 0)
		for _, op := range []Op{OpWrite, OpRead} {
			must(t, a.qp.PostSend(SendWR{ID: 1, Op: op, Flags: Signaled,
				SGEs: []SGE{a.mr.SGE(0, 1<<20)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
			var wcs [1]WC
			must(t, loopback.Drive(link, time.Minute, func() bool { return a.cq.Poll(wcs[:]) > 0 },
				a.Device, b.Device))
			if wcs[0].Status != Success {
				t.Fatalf("%v: %v", op, wcs[0].Status)
			}
		}
		a.Progress() // reads the last CNP
		for _, seen := range []map[bth.Operation]*[4]int{sent, answers} {
			for op, n := range seen {
				if n[0]+n[1]+n[3] > 0 {
					t.Errorf("%s: %v sent with ECN bits 0 to 3: %v times, want only 2", kind, op, *n)
				}
			}
		}
		ca, cb := a.Counters(), b.Counters()
		for _, c := range []Counters{ca, cb} { // the first finds an empty queue
			if c.MarkedPkts < 150 || c.SentCNPs < 30 || c.SentCNPs > c.MarkedPkts {
				t.Errorf("%s: %d marked packets, %d CNPs sent", kind, c.MarkedPkts, c.SentCNPs)
			}
		}
		if ca.RcvdCNPs != cb.SentCNPs || cb.RcvdCNPs+1 < ca.SentCNPs {
			t.Errorf("%s: %d and %d CNPs sent, %d and %d received", kind, cb.SentCNPs, ca.SentCNPs,
				ca.RcvdCNPs, cb.RcvdCNPs)
		}
		if n := sent[bth.OpCNP]; n == nil || answers[bth.OpCNP] == nil {
			t.Errorf("%s: CNPs are missing on the link", kind)
		}
	}
}
