//go:build interop

package interop_test

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce"
)

// TestUDPSockets repeats scenarios with gorxe on UDP sockets.
func TestUDPSockets(t *testing.T) {
	var vs []variant
	for _, v6 := range []bool{false, true} {
		for _, mtu := range []bth.MTU{1024, 4096} {
			vs = append(vs, variant{lab.MaxMTU, mtu, v6, false}, variant{lab.MaxMTU, mtu, v6, true})
		}
	}
	// The others need half of the combinations.
	half := []variant{vs[0], vs[1], vs[6], vs[7]}
	for _, s := range []struct {
		name string
		core bool
		set  setting
		runs bool // gorxe sends runs of packets
		talk func(t *testing.T, v variant, active, passive end)
	}{
		{"RC mixed, both ways", true, setting{}, true, talkMixed},
		{"RC WRITE", false, setting{}, true, talkWrite(roce.OpWrite)},
		{"RC READ", false, setting{}, true, talkRead},
		{"UC SEND", false, setting{kind: roce.UC}, false, talkSend(roce.OpSend)},
		{"UD SEND with immediate", false, setting{kind: roce.UD}, false,
			talkDatagrams(roce.OpSendImm)},
	} {
		if *coreFlag && !s.core {
			continue
		}
		list := half
		if s.runs && !s.core {
			list = vs
		}
		playOnSockets(t, s.name+" (UDP sockets)", list, func(t *testing.T, r *rig, v variant) {
			active, passive := r.ends(t, v, s.set)
			s.talk(t, v, active, passive)
			c := r.dev.Counters()
			sends := s.name != "RC WRITE" && v.gorxePassive || s.name != "RC READ" && !v.gorxePassive
			if s.runs && sends && c.Port.TxRuns == 0 {
				t.Errorf("gorxe has sent no run of packets, but %d single ones", c.Port.TxFrames)
			}
			if c.Retransmits > 0 {
				t.Logf("%d of %d packets were retransmitted", c.Retransmits, c.TxFrames)
			}
		})
	}
	c := &cmTools[0]
	playOnSockets(t, c.name+" (UDP sockets)", ofDevice(lab.MaxMTU, cmVariants())[:2],
		func(t *testing.T, r *rig, v variant) { c.run(t, r, v) })
}

// playOnSockets is play with gorxe's device on UDP sockets.
func playOnSockets(t *testing.T, scenario string, vs []variant,
	f func(t *testing.T, r *rig, v variant)) {
	stage(t, scenario, vs, func(t *testing.T, r *rig, v variant) {
		r.plugOut(t)
		dev, err := r.open(roce.WithPort(roce.PortUDP))
		if err != nil {
			t.Fatal(err)
		}
		r.dev = dev
		t.Cleanup(func() { r.plugOut(t) })
		r.watch(t)
		f(t, r, v)
		if n := dev.Counters().Drops[frame.ReasonICRC]; n > 0 {
			t.Errorf("gorxe has dropped %d packets with a bad ICRC", n)
		}
	})
}
