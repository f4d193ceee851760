//go:build interop

package interop_test

import (
	"testing"

	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce"
)

// TestUDPSockets repeats scenarios with gorxe on UDP sockets.
func TestUDPSockets(t *testing.T) {
	vs := []variant{{lab.MaxMTU, 1024, false, false}, {lab.MaxMTU, 1024, false, true},
		{lab.MaxMTU, 4096, true, false}, {lab.MaxMTU, 4096, true, true}}
	for _, s := range []struct {
		name string
		core bool
		set  setting
		talk func(t *testing.T, v variant, active, passive end)
	}{
		{"RC mixed, both ways", true, setting{}, talkMixed},
		{"RC WRITE", false, setting{}, talkWrite(roce.OpWrite)},
		{"RC READ", false, setting{}, talkRead},
		{"UC SEND", false, setting{kind: roce.UC}, talkSend(roce.OpSend)},
		{"UD SEND with immediate", false, setting{kind: roce.UD}, talkDatagrams(roce.OpSendImm)},
	} {
		if *coreFlag && !s.core {
			continue
		}
		playOnSockets(t, s.name+" (UDP sockets)", vs, func(t *testing.T, r *rig, v variant) {
			active, passive := r.ends(t, v, s.set)
			s.talk(t, v, active, passive)
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
