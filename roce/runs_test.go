package roce

import (
	"testing"

	"github.com/gorxe/gorxe/xdp/veth"
)

// A device that sends runs of packets reaches a peer that drops them: an AF_XDP socket without
// multi-buffer. Peers that accept runs get them without retransmissions.
func TestPeerDropsRuns(t *testing.T) {
	pair := newVeth(t, veth.Options{Offloads: true})
	off := false
	for _, drops := range []bool{false, true} {
		o := XDPOptions{Mode: XDPGeneric}
		if drops {
			o.MultiBuffer = &off
		}
		for _, sender := range []PortKind{PortXDP, PortUDP} {
			a := openEnd(t, &pair.A, XDPOptions{Mode: XDPGeneric}, rigConfig{
				opts: []Option{WithPort(sender)}})
			b := openEnd(t, &pair.B, o, rigConfig{})
			connect(t, a.qp, b.qp)
			for range 3 {
				conversation(t, a, b)
				conversation(t, b, a)
			}
			lost := a.Counters().Retransmits
			if drops && (lost == 0 || lost > 1000) {
				t.Errorf("%v: %d packets were retransmitted to a peer that drops runs", sender, lost)
			}
			must(t, a.Close())
			must(t, b.Close())
		}
	}
}
