//go:build interop

package interop_test

import (
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/lab"
	"github.com/gorxe/gorxe/roce"
)

// TestNewer tests what newer kernels' rxe supports: FLUSH and ATOMIC_WRITE (IBA annex A19). It is
// not in the core because it needs a second guest image.
func TestNewer(t *testing.T) {
	if *coreFlag {
		t.Skip("needs guests of Debian 13, which the core does not build")
	}
	newerGuests(t)
	vs := variants(lab.MaxMTU)
	play(t, "RC ATOMIC_WRITE", vs, func(t *testing.T, r *rig, v variant) {
		active, passive := r.ends(t, v, setting{new: true})
		talkAtomicWrite(t, active, passive)
	})
	onBadWires(t, "RC ATOMIC_WRITE", talkAtomicWrite)
	t.Run("FLUSH", func(t *testing.T) {
		labFor(t, lab.MaxMTU).needsRightFlush(t)
		for _, s := range []struct {
			name string
			talk func(t *testing.T, a, p end)
		}{
			{"RC FLUSH of a range", talkFlush(roce.FlushRange, 5000)},
			{"RC FLUSH of a region", talkFlush(roce.FlushRegion, 0)},
			{"RC FLUSH with a wrong rkey", talkFlushRefused},
		} {
			play(t, s.name, vs, func(t *testing.T, r *rig, v variant) {
				active, passive := r.ends(t, v, setting{new: true})
				s.talk(t, active, passive)
			})
		}
		onBadWires(t, "RC FLUSH", talkFlush(roce.FlushRange, 5000))
	})
}

// onBadWires runs a scenario several times at 1 and 5 % loss.
func onBadWires(t *testing.T, name string, talk func(t *testing.T, a, p end)) {
	for _, w := range badWires[:2] {
		for _, towardsGuest := range []bool{false, true} {
			// rxe retransmits these two with address 0 (seen in Linux 6.12), so its own requests
			// must not be lost.
			where, vs := " from the kernel", onlyActive(few())
			if towardsGuest {
				where, vs = " to the kernel", few()
			}
			play(t, name+", "+w.name+where, vs, func(t *testing.T, r *rig, v variant) {
				active, passive := r.ends(t, v, setting{new: true})
				r.fault(t, towardsGuest, w.rule)
				for range 5 {
					talk(t, active, passive)
				}
			})
		}
	}
}

// needsRightFlush skips if the kernel's rxe has the wrong ICRC for FLUSH. Its table of opcodes has
// no payload offset for FLUSH, so its ICRC covers the headers from the BTH on a second time. It
// drops FLUSHes with the correct ICRC (seen in Linux 6.12).
func (r *rig) needsRightFlush(t *testing.T) {
	t.Helper()
	r.plugIn(t)
	kernel, gorxe := r.ends(t, variant{r.MTU(), 1024, false, true}, setting{new: true})
	dropped := func() uint64 {
		c := r.dev.Counters()
		return c.Get("drop_frame_bad_icrc")
	}
	before := dropped()
	to := gorxe.address()
	kernel.post(work{op: roce.OpFlush, size: 64, raddr: to.mem, rkey: to.rkey})
	if len(kernel.poll(sendQueue, 1, 200*time.Millisecond)) == 0 && dropped() > before {
		t.Skip("the kernel's rxe puts the headers of a FLUSH into its ICRC twice: it cannot exchange FLUSHes with other NICs")
	}
}

// talkFlush: when the FLUSH after WRITEs has completed, their data is in place before the remote
// side is notified.
func talkFlush(level roce.Level, size int) func(t *testing.T, a, p end) {
	return func(t *testing.T, a, p end) {
		to := p.address()
		const n = 8
		p.fill(999, n, 0, 5000, slot)
		a.fill(3, n, 0, 5000, slot)
		for i := range n {
			off := i * slot
			a.post(work{op: roce.OpWrite, id: uint64(2 * i), off: off, size: 5000,
				raddr: to.mem + uint64(off), rkey: to.rkey})
			a.post(work{op: roce.OpFlush, id: uint64(2*i + 1), size: size,
				raddr: to.mem + uint64(off), rkey: to.rkey, level: level})
		}
		expect(t, "active", a, sendQueue, 0, 2*n)
		p.check(3, n, 0, 5000, slot)
	}
}

func talkFlushRefused(t *testing.T, a, p end) {
	to := p.address()
	a.post(work{op: roce.OpFlush, size: 64, raddr: to.mem, rkey: to.rkey ^ 0xff00,
		level: roce.FlushRange})
	wantStatuses(t, "active", a, sendQueue, accessError)
	wantState(t, "active", a, "ERR")
	wantState(t, "passive", p, "ERR")
}

// talkAtomicWrite: 8 bytes each, later ones over earlier ones.
func talkAtomicWrite(t *testing.T, a, p end) {
	to := p.address()
	const n = 30
	p.poke(64, 0)
	for i := range n {
		a.poke(8*i, 1<<60+uint64(i))
		a.post(work{op: roce.OpAtomicWrite, id: uint64(i), off: 8 * i, size: 8,
			raddr: to.mem + uint64(64+8*(i%3)), rkey: to.rkey})
	}
	expect(t, "active", a, sendQueue, 0, n)
	for i := n - 3; i < n; i++ {
		if got, want := p.peek(64+8*(i%3)), 1<<60+uint64(i); got != want {
			t.Errorf("word %d is %#x, want %#x", i%3, got, want)
		}
	}
}
