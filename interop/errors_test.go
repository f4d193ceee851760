//go:build interop

package interop_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// The texts of ibv_wc_status_str.
const (
	flushed      = "Work Request Flushed Error"
	accessError  = "remote access error"
	invalidReq   = "remote invalid request error"
	opError      = "remote operation error"
	lengthError  = "local length error"
	localOpError = "local QP operation error"
	retryOver    = "transport retry counter exceeded"
	rnrOver      = "RNR retry counter exceeded"
)

// statuses polls n completions and returns how they ended.
func statuses(e end, q queue, n int) []string {
	var out []string
	for _, w := range e.poll(q, n, patience) {
		out = append(out, w.status)
	}
	return out
}

func wantStatuses(t *testing.T, who string, e end, q queue, want ...string) {
	t.Helper()
	if got := statuses(e, q, len(want)); !slices.Equal(got, want) {
		t.Errorf("%s: completions %q, want %q", who, got, want)
	}
}

func wantState(t *testing.T, who string, e end, want string) {
	t.Helper()
	if got := e.state(); got != want {
		t.Errorf("%s: QP in %s, want %s", who, got, want)
	}
}

// TestErrors checks the statuses that errors cause on both sides.
func TestErrors(t *testing.T) {
	for _, s := range []struct {
		name string
		set  setting
		talk func(t *testing.T, v variant, active, passive end)
	}{
		{"WRITE with a wrong rkey", setting{},
			refusedBy(work{op: roce.OpWrite, size: 64}, wrongKey)},
		{"READ with a wrong rkey", setting{}, refusedBy(work{op: roce.OpRead, size: 64}, wrongKey)},
		{"FETCH_ADD with a wrong rkey", setting{},
			refusedBy(work{op: roce.OpFetchAdd, size: 8, swap: 1}, wrongKey)},
		{"WRITE out of bounds", setting{}, refusedBy(work{op: roce.OpWrite, size: 64}, beyond)},
		{"WRITE of many packets out of bounds", setting{},
			refusedBy(work{op: roce.OpWrite, size: slot}, beyond)},
		{"READ out of bounds", setting{}, refusedBy(work{op: roce.OpRead, size: slot}, beyond)},
		{"SEND before a receive is posted", setting{}, talkLateReceive},
		{"SEND without a receive, until RNR retries run out", setting{rnrRetries: 2},
			talkNoReceive},
		{"SEND longer than the receive", setting{}, talkTooLong},
	} {
		play(t, s.name, few(), func(t *testing.T, r *rig, v variant) {
			active, passive := r.ends(t, v, s.set)
			s.talk(t, v, active, passive)
		})
	}
}

func wrongKey(w *work, to address) { w.raddr, w.rkey = to.mem, to.rkey^0xff00 }
func beyond(w *work, to address)   { w.raddr, w.rkey = to.mem+region-8, to.rkey }

// refusedBy puts a request that the responder must refuse between two valid ones. It ends the
// connection (IBA 9.9.3, class C).
func refusedBy(bad work, spoil func(*work, address)) func(*testing.T, variant, end, end) {
	return func(t *testing.T, v variant, a, p end) {
		to := p.address()
		good := work{op: roce.OpWrite, size: 100, raddr: to.mem, rkey: to.rkey}
		spoil(&bad, to)
		p.recv(0, 2, 0, 100, 100)
		a.fill(1, 1, 0, 100, 0)
		a.post(good)
		a.post(bad)
		a.post(good)
		wantStatuses(t, "active", a, sendQueue, success, accessError, flushed)
		wantStatuses(t, "passive", p, recvQueue, flushed, flushed)
		wantState(t, "active", a, "ERR")
		wantState(t, "passive", p, "ERR")
		p.check(1, 1, 0, 100, 0)
	}
}

func talkLateReceive(t *testing.T, v variant, a, p end) {
	a.fill(9, 3, 0, 5000, slot)
	a.post(work{op: roce.OpSend, n: 3, size: 5000, step: slot})
	if w := a.poll(sendQueue, 1, 300*time.Millisecond); len(w) > 0 {
		t.Fatalf("a SEND without a receiver completed: %+v", w)
	}
	p.recv(0, 3, 0, 5000, slot)
	expect(t, "active", a, sendQueue, 0, 3)
	expect(t, "passive", p, recvQueue, 0, 3)
	p.check(9, 3, 0, 5000, slot)
}

func talkNoReceive(t *testing.T, v variant, a, p end) {
	a.post(work{op: roce.OpSend, n: 2, size: 100})
	wantStatuses(t, "active", a, sendQueue, rnrOver, flushed)
	wantState(t, "active", a, "ERR")
	wantState(t, "passive", p, "RTS")
}

// talkTooLong: a responder answers "invalid request", and its receive ends with a length error (IBA
// 9.7.4.1.7, 9.9.3.1). rxe answers "remote operational error".
func talkTooLong(t *testing.T, v variant, a, p end) {
	p.recv(0, 2, 0, 100, slot)
	a.post(work{op: roce.OpSend, n: 2, size: 200})
	if v.gorxePassive {
		wantStatuses(t, "active", a, sendQueue, invalidReq, flushed)
		wantStatuses(t, "passive", p, recvQueue, lengthError, flushed)
	} else {
		wantStatuses(t, "active", a, sendQueue, opError, flushed)
		wantStatuses(t, "passive", p, recvQueue, localOpError, flushed)
	}
	wantState(t, "active", a, "ERR")
	wantState(t, "passive", p, "ERR")
}

// transfer starts WRITEs and causes an accident when some of their packets have been sent. It
// returns the number of WRITEs. Posting may take until all are done because rxe sends within the
// post, so the accident does not wait for that.
func transfer(t *testing.T, r *rig, a, p end, accident func()) int {
	t.Helper()
	const blocks, begun = 400, 50
	to := p.address()
	a.fill(77, 1, 0, slot, 0)
	from, posted := r.Recorder.Seen(), make(chan struct{})
	go func() {
		defer close(posted)
		a.post(work{op: roce.OpWrite, n: blocks, size: slot, raddr: to.mem, rkey: to.rkey})
	}()
	for end := time.Now().Add(patience); r.Recorder.Seen()-from < begun; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the transfer does not begin")
		}
	}
	accident()
	<-posted
	return blocks
}

// wantBroken: the first failed request reports the peer's silence, the ones after it are flushed.
func wantBroken(t *testing.T, a end, n int) {
	t.Helper()
	got := statuses(a, sendQueue, n)
	i := slices.IndexFunc(got, func(s string) bool { return s != success })
	if i < 0 || len(got) != n || got[i] != retryOver ||
		slices.ContainsFunc(got[i+1:], func(s string) bool { return s != flushed }) {
		t.Errorf("%d of %d completions; the first failure is %d of them: %q", len(got), n, i,
			got[max(i, 0):min(max(i, 0)+3, len(got))])
	}
	wantState(t, "active", a, "ERR")
}

// TestAccidents kills the peer or unplugs the cable during a transfer.
func TestAccidents(t *testing.T) {
	mortal := setting{retries: 3, timeout: 14}
	play(t, "peer killed in the middle of a transfer", few(),
		func(t *testing.T, r *rig, v variant) {
			a, p := r.ends(t, v, mortal)
			left := transfer(t, r, a, p, p.kill)
			wantBroken(t, a, left)
		})
	play(t, "peer rebooted in the middle of a transfer", few(),
		func(t *testing.T, r *rig, v variant) {
			a, p := r.ends(t, v, mortal)
			left := transfer(t, r, a, p, func() { r.rebootPassive(t, v) })
			wantBroken(t, a, left)
			if !v.gorxePassive {
				if err := r.Guests[0].Reboot(context.Background()); err != nil {
					t.Fatal(err)
				}
				// A guest that has just booted may take longer to resolve a neighbor than
				// modify_qp's second.
				r.guest(t, fmt.Sprintf("for i in 1 2 3 4 5 6; do ping -q -c 1 -W 2 %v && exit 0; done; exit 1", r.HostAddr(v.v6)))
			}
			a, p = r.ends(t, v, mortal)
			talkWrite(roce.OpWrite)(t, v, a, p)
		})
	patient := setting{retries: 7, timeout: 18} // 1.07 s each
	for _, whose := range []string{"gorxe's", "the kernel's"} {
		play(t, whose+" cable pulled for 3 s", few(), func(t *testing.T, r *rig, v variant) {
			cable := r.Cable
			if whose != "gorxe's" {
				cable = r.Guests[0].SetLink
			}
			a, p := r.ends(t, v, patient)
			t.Cleanup(func() { _ = cable(true) }) // or the next scenario would have no link
			left := transfer(t, r, a, p, func() {
				if err := cable(false); err != nil {
					t.Fatal(err)
				}
			})
			// Not earlier: asking a guest for hundreds of completions takes so long that the rest
			// finishes meanwhile.
			done := len(a.poll(sendQueue, left, 0))
			if left -= done; left == 0 {
				t.Fatalf("all %d WRITEs were done before the accident could happen", done)
			}
			time.Sleep(3 * time.Second)
			if err := cable(true); err != nil {
				t.Fatal(err)
			}
			for _, s := range statuses(a, sendQueue, left) {
				if s != success {
					t.Fatalf("after the cable was plugged in again: %s", s)
				}
				left--
			}
			if left > 0 {
				t.Fatalf("%d WRITEs are still not done", left)
			}
			p.check(77, 1, 0, slot, 0)
		})
	}
}

// rebootPassive cuts the power of the passive side's host. gorxe's host loses all state too when
// its device closes: a new one does not know the old QPs.
func (r *rig) rebootPassive(t *testing.T, v variant) {
	t.Helper()
	if !v.gorxePassive {
		r.Guests[0].PowerOff()
		return
	}
	r.plugOut(t)
	r.plugIn(t)
}
