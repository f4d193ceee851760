//go:build interop

package interop_test

import (
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce"
)

// TestWindows: the passive side opens part of its memory for a while, by every means of verbs, and
// closes it again.
func TestWindows(t *testing.T) {
	vs := variants(lab.MaxMTU)
	for kind := range numKinds {
		mine := vs
		if kind == fastReg || kind == slowReg {
			mine = onlyPassive(vs) // libibverbs has neither
		}
		if kind != slowReg {
			play(t, fmt.Sprintf("WRITE and READ by a %v", kind), mine,
				func(t *testing.T, r *rig, v variant) {
					a, p := r.ends(t, v, setting{})
					talkWindow(t, kind, v, a, p)
				})
		}
		if kind == window1 {
			continue // not for invalidation (IBA 10.6.7.2)
		}
		play(t, fmt.Sprintf("SEND with invalidate of a %v", kind), mine,
			func(t *testing.T, r *rig, v variant) {
				a, p := r.ends(t, v, setting{})
				talkInvalidate(t, kind, a, p)
			})
		if kind != slowReg {
			play(t, fmt.Sprintf("LOCAL_INV of a %v", kind), mine,
				func(t *testing.T, r *rig, v variant) {
					a, p := r.ends(t, v, setting{})
					talkLocalInvalidate(t, kind, a, p)
				})
		}
	}
}

// The position of the window in the passive side's memory.
const (
	windowOff  = 2 * slot
	windowSize = slot
)

// through writes a pattern by the key and reads it back.
func through(t *testing.T, rkey uint32, a, p end) {
	t.Helper()
	to := p.address()
	a.fill(7, 1, 0, 3000, 0)
	a.post(work{op: roce.OpWrite, id: 50, size: 3000, raddr: to.mem + windowOff, rkey: rkey})
	a.post(work{op: roce.OpRead, id: 51, off: slot, size: 3000, raddr: to.mem + windowOff,
		rkey: rkey})
	expect(t, "active", a, sendQueue, 50, 2)
	p.check(7, 1, windowOff, 3000, 0)
	a.check(7, 1, slot, 3000, 0)
}

// shut checks that the key is no longer valid.
func shut(t *testing.T, rkey uint32, off uint64, a, p end) {
	t.Helper()
	a.post(work{op: roce.OpWrite, id: 60, size: 8, raddr: p.address().mem + off, rkey: rkey})
	wantStatuses(t, "active", a, sendQueue, accessError)
}

// talkWindow: the window opens exactly what it covers although the region continues. rxe is not
// tested for the second half: it holds a window's users only to the bounds of the region (seen in
// Linux 6.1).
func talkWindow(t *testing.T, kind windowKind, v variant, a, p end) {
	rkey := p.window(kind, windowOff, windowSize)
	through(t, rkey, a, p)
	if v.gorxePassive {
		shut(t, rkey, windowOff+windowSize-4, a, p)
	}
}

// talkInvalidate: after a SEND with invalidate the key that a WRITE has just used is invalid.
func talkInvalidate(t *testing.T, kind windowKind, a, p end) {
	rkey := p.window(kind, windowOff, windowSize)
	p.recv(0, 1, 0, slot, 0)
	through(t, rkey, a, p)
	a.post(work{op: roce.OpSendInv, size: 16, inv: rkey})
	expect(t, "active", a, sendQueue, 0, 1)
	if w := expect(t, "passive", p, recvQueue, 0, 1); w[0].imm != rkey {
		t.Errorf("the receive tells of key %#x, want %#x", w[0].imm, rkey)
	}
	shut(t, rkey, windowOff, a, p)
}

// talkLocalInvalidate: the owner invalidates it.
func talkLocalInvalidate(t *testing.T, kind windowKind, a, p end) {
	rkey := p.window(kind, windowOff, windowSize)
	through(t, rkey, a, p)
	p.invalidate(rkey)
	shut(t, rkey, windowOff, a, p)
}
