//go:build interop

package interop_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// badWires are netem's faults for one direction.
var badWires = []struct {
	name, rule string
	core       bool
}{
	{"loss 1 %", "loss 1%", true},
	{"loss 5 %", "loss 5%", true},
	{"duplicates 20 %", "duplicate 20%", true},
	{"reordering", "delay 2ms reorder 75% 25%", true},
	{"loss, duplicates and reordering", "delay 1ms 1ms loss 2% duplicate 5% reorder 75%", false},
}

// TestFaults checks that everything arrives once, in order and intact on bad links.
func TestFaults(t *testing.T) {
	for _, w := range badWires {
		if *coreFlag && !w.core {
			continue
		}
		for _, towardsGuest := range []bool{false, true} {
			where := "from the kernel"
			if towardsGuest {
				where = "to the kernel"
			}
			play(t, fmt.Sprintf("RC, %s %s", w.name, where), few(),
				func(t *testing.T, r *rig, v variant) {
					active, passive := r.ends(t, v, setting{})
					r.fault(t, towardsGuest, w.rule)
					for range 3 {
						talkMixed(t, v, active, passive)
					}
				})
		}
	}
	play(t, "RC, loss 3 % both ways", few(), func(t *testing.T, r *rig, v variant) {
		active, passive := r.ends(t, v, setting{})
		r.fault(t, true, "loss 3%")
		r.fault(t, false, "loss 3%")
		talkMixed(t, v, active, passive)
		talkReadStream(t, v, active, passive)
	})
	for _, towardsGuest := range []bool{false, true} {
		where := "from the kernel"
		if towardsGuest {
			where = "to the kernel"
		}
		play(t, "UC, loss, duplicates and reordering "+where, few(),
			func(t *testing.T, r *rig, v variant) {
				active, passive := r.ends(t, v, setting{kind: roce.UC})
				r.fault(t, towardsGuest, "delay 1ms loss 5% duplicate 5% reorder 95%")
				talkUnreliable(t, v, active, passive)
			})
	}
}

// talkReadStream: large READs whose responses are lost in the middle.
func talkReadStream(t *testing.T, v variant, a, p end) {
	to := p.address()
	p.fill(300, 16, 0, slot, slot)
	a.post(work{op: roce.OpRead, n: 16, off: 8 * slot, size: slot, step: slot, raddr: to.mem,
		rkey: to.rkey, rstep: slot})
	expect(t, "active", a, sendQueue, 0, 16)
	a.check(300, 16, 8*slot, slot, slot)
}

// talkUnreliable: every message that arrives is complete. One arrives twice or late only if that
// happens to all its packets, without others between them.
func talkUnreliable(t *testing.T, v variant, a, p end) {
	const n = 100
	size := 2*int(v.mtu) + 9
	p.recv(0, n, 0, slot/4, slot/4)
	a.fill(0, n, 0, size, slot/4)
	a.post(work{op: roce.OpSendImm, n: n, size: size, step: slot / 4, imm: 0})
	expect(t, "active", a, sendQueue, 0, n)
	wcs := p.poll(recvQueue, n, 2*time.Second)
	last, late := -1, 0
	for i, w := range wcs {
		if w.status != success || int(w.size) != size {
			t.Fatalf("receive %d: %+v, after message %d", i, w, last)
		}
		if int(w.imm) <= last {
			late++
		}
		last = max(last, int(w.imm))
		p.check(w.imm, 1, int(w.id)*(slot/4), size, 0)
	}
	if late > 2 {
		t.Errorf("%d of %d messages came twice or late, want at most 2", late, len(wcs))
	}
	if len(wcs) < n/4 {
		t.Errorf("only %d of %d messages came", len(wcs), n)
	}
}
