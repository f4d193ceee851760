package qp

import (
	"testing"

	"pgregory.net/rapid"
)

// timerQPs creates QPs whose timers the test sets. A timer that fires clears rnrUntil.
func timerQPs(t testing.TB, n int) (*Engine, []*QP) {
	e := newWorld(t, 1).ends[0]
	qs := make([]*QP, n)
	for i := range qs {
		var err error
		qs[i], err = e.CreateQP(InitAttr{PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq})
		must(t, err)
		qs[i].rec.init()
	}
	return e.Engine, qs
}

func (q *QP) setAlarm(t Time) {
	q.rec.rnrUntil = t
	q.eng.setTimer(q, t)
}

func (q *QP) fired() bool { return q.rec.rnrUntil == 0 }

// The timer wheel against a simple model, a map from QP to deadline, with small and large steps of
// time. No timer fires early, all fire within a tick, canceled ones never fire, and NextTimeout is
// never late.
func TestWheelAgainstModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		e, qs := timerQPs(t, 8)
		now := Time(rapid.Int64Range(0, 1<<50).Draw(r, "start"))
		model := map[*QP]Time{}
		span := rapid.OneOf(rapid.Int64Range(0, 100_000), rapid.Int64Range(0, 1<<32),
			rapid.Int64Range(0, 1<<44), rapid.Int64Range(0, 1<<47))
		for range rapid.IntRange(1, 60).Draw(r, "steps") {
			q := qs[rapid.IntRange(0, len(qs)-1).Draw(r, "qp")]
			switch rapid.IntRange(0, 4).Draw(r, "what") {
			case 0, 1:
				d := now + 1 + Time(span.Draw(r, "after"))
				q.setAlarm(d)
				model[q] = d
			case 2: // canceled: the entry stays in the wheel for a while
				q.rec.rnrUntil = 0
				e.setTimer(q, Never)
				delete(model, q)
			case 3:
				q.rec.rnrUntil = 0
				e.stopTimer(q)
				delete(model, q)
			case 4:
				now = checkNext(r, e, now, model, Time(span.Draw(r, "leap")))
				e.HandleTimeout(now)
				for q, d := range model {
					due := uint64(d+1<<tickShift-1)>>tickShift <= uint64(now)>>tickShift
					switch {
					case q.fired() && d > now:
						r.Fatalf("fired at %d, want %d", now, d)
					case !q.fired() && due:
						r.Fatalf("not fired at %d, want %d", now, d)
					case q.fired():
						delete(model, q)
					}
				}
			}
		}
		// Finally everything fires if time follows NextTimeout.
		for range 10_000 {
			next, ok := e.NextTimeout()
			if !ok {
				break
			}
			now = max(now, next)
			e.HandleTimeout(now)
		}
		for q, d := range model {
			if !q.fired() {
				r.Fatalf("never fired, want %d", d)
			}
		}
	})
}

// checkNext advances time by at most leap, and checks that NextTimeout is not after a deadline.
func checkNext(r *rapid.T, e *Engine, now Time, model map[*QP]Time, leap Time) Time {
	next, ok := e.NextTimeout()
	for _, d := range model {
		if !ok || next > d+1<<tickShift {
			r.Fatalf("NextTimeout %d, %v; a timer is due at %d", next, ok, d)
		}
	}
	return now + leap
}

// The wheel stands still while no timer runs, and must catch up over any number of its revolutions
// (one takes 4.9 hours) when the first timer is set.
func TestWheelAfterLongPause(t *testing.T) {
	const turn = Time(1) << (levelBits*wheelLevels + tickShift)
	for _, coldFields := range []Time{turn - 1, turn, 2*turn - turn/64, 2*turn - turn/64 + turn/128,
		2 * turn, 100*turn + 12345} {
		for _, after := range []Time{1, 1 << 20, turn / 64, turn / 2, turn, 3 * turn} {
			e, qs := timerQPs(t, 1)
			e.HandleTimeout(1000)
			now := coldFields
			d := now + after
			qs[0].setAlarm(d)
			for i := 0; !qs[0].fired(); i++ {
				next, ok := e.NextTimeout()
				if !ok || i > 1000 {
					t.Fatalf("pause %d, after %d: %d steps, NextTimeout %d %v", coldFields, after,
						i, next, ok)
				}
				now = max(now, next)
				e.HandleTimeout(now)
			}
			if now < d || now > d+2<<tickShift {
				t.Errorf("pause %d: fired at %d, want %d", coldFields, now, d)
			}
		}
	}
}

// A QP keeps the low 32 bits of its tick, which wrap after 20 hours. A timer may be moved across
// the wrap.
func TestWheelAcrossWrap(t *testing.T) {
	const tick = Time(1) << tickShift
	const wrap = tick << 32
	e, qs := timerQPs(t, 2)
	e.HandleTimeout(wrap - 5*tick)
	qs[0].setAlarm(wrap + 10*tick)
	qs[0].setAlarm(wrap - 2*tick) // earlier: moves
	qs[1].setAlarm(wrap - 2*tick)
	qs[1].setAlarm(wrap + 10*tick) // later: stays, and is set again
	e.HandleTimeout(wrap - tick)
	if !qs[0].fired() || qs[1].fired() {
		t.Errorf("just before the wrap: %v, %v", qs[0].fired(), qs[1].fired())
	}
	e.HandleTimeout(wrap + 11*tick)
	if !qs[1].fired() {
		t.Error("the other did not fire after the wrap")
	}
}

// Time may stand still or go back.
func TestWheelTimeGoesBack(t *testing.T) {
	e, qs := timerQPs(t, 1)
	e.HandleTimeout(second)
	qs[0].setAlarm(second + 100_000)
	e.HandleTimeout(second / 2)
	e.HandleTimeout(-5)
	e.HandleTimeout(second)
	if qs[0].fired() {
		t.Fatal("fired early")
	}
	e.HandleTimeout(second + 200_000)
	if !qs[0].fired() {
		t.Fatal("did not fire")
	}
}

// A later deadline leaves the entry where it is, an earlier one moves it. Equal ones share a slot,
// and each of them can be removed.
func TestWheelMoves(t *testing.T) {
	e, qs := timerQPs(t, 3)
	for _, q := range qs {
		q.setAlarm(100_000)
	}
	qs[0].setAlarm(900_000)
	qs[1].setAlarm(50_000)
	e.stopTimer(qs[2])
	qs[2].rec.rnrUntil = 0
	e.HandleTimeout(70_000)
	if qs[0].fired() || !qs[1].fired() {
		t.Fatal("at 70 us only the second is due")
	}
	e.HandleTimeout(200_000)
	if qs[0].fired() {
		t.Fatal("the first is due later")
	}
	e.HandleTimeout(920_000)
	if !qs[0].fired() {
		t.Fatal("the first did not fire")
	}
	if _, ok := e.NextTimeout(); ok || e.Counters().Timers != 2 {
		t.Errorf("after all timers: NextTimeout() = %v, %d timers fired; want false, 2", ok,
			e.Counters().Timers)
	}
}
