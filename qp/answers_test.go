package qp

import (
	"testing"

	"pgregory.net/rapid"
)

// The answer queue keeps its order and bounds and sends every answer completely, for fresh
// requests, duplicates of any part of earlier ones, and packets being sent.
func TestAnswerQueue(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		limit := rapid.IntRange(0, 5).Draw(r, "limit")
		var a answerQueue
		a.init(limit)
		a.list = make([]answer, 0, 2*limit) // as borrowAnswers does
		next := uint64(countBase)           // PSN of the next fresh request
		type span struct{ from, to uint64 }
		var owed []span // packets still to be sent
		capacity := cap(a.list)
		for range rapid.IntRange(1, 200).Draw(r, "steps") {
			switch rapid.IntRange(0, 2).Draw(r, "what") {
			case 0:
				n := uint32(rapid.IntRange(1, 4).Draw(r, "npkts"))
				verdict := a.freshSpace()
				if (verdict == refuseInvalid) != (int(a.fresh) >= limit) {
					r.Fatalf("freshSpace() = %d with %d fresh of %d", verdict, a.fresh, limit)
				}
				if verdict == accept {
					a.insert(answer{psn: next, npkts: n, fresh: true})
					owed = append(owed, span{next, next + uint64(n)})
					next += uint64(n)
				}
			case 1:
				if next == countBase {
					continue
				}
				psn := next - 1 - uint64(rapid.IntRange(0, min(20, int(next-countBase)-1)).Draw(r,
					"back"))
				n := uint32(rapid.IntRange(1, int(next-psn)).Draw(r, "dup"))
				if a.insertDuplicate(answer{psn: psn, npkts: n}) {
					owed = append(owed, span{psn, psn + 1}) // at least its first packet
				} else if a.waiting() < capacity {
					r.Fatal("a duplicate was rejected although there is space")
				}
			case 2:
				if a.empty() {
					continue
				}
				w := &a.list[a.first]
				sent := w.psn + uint64(w.sent)
				for i := range owed {
					if owed[i].from == sent && owed[i].from < owed[i].to {
						owed[i].from++
					}
				}
				if w.sent++; w.sent == w.npkts {
					a.pop()
				}
			}
			fresh := 0
			for i := int(a.first); i < len(a.list); i++ {
				if a.list[i].fresh {
					fresh++
				}
				if i > int(a.first) && a.list[i-1].psn > a.list[i].psn {
					r.Fatalf("PSN %d is before %d", a.list[i-1].psn, a.list[i].psn)
				}
				if a.list[i].sent >= a.list[i].npkts {
					r.Fatal("an answer that was sent is still queued")
				}
			}
			if fresh != int(a.fresh) || fresh > limit || cap(a.list) != capacity ||
				a.waiting() > 2*limit {
				r.Fatalf("%d fresh, counted %d, limit %d; %d waiting, capacity %d, want %d", fresh,
					a.fresh, limit, a.waiting(), cap(a.list), capacity)
			}
		}
		for !a.empty() {
			w := &a.list[a.first]
			sent := w.psn + uint64(w.sent)
			for i := range owed {
				if owed[i].from == sent && owed[i].from < owed[i].to {
					owed[i].from++
				}
			}
			if w.sent++; w.sent == w.npkts {
				a.pop()
			}
		}
		for _, s := range owed {
			if s.from < s.to {
				r.Fatalf("packets %d to %d were never sent", s.from-countBase, s.to-countBase)
			}
		}
	})
}

// A late duplicate of a READ that was requested again in parts contains the part that is being
// answered. The requester may send its next READ when it has all packets of the duplicate.
func TestDuplicateContainsFreshAnswer(t *testing.T) {
	var a answerQueue
	a.init(1)
	a.list = make([]answer, 0, 2)
	a.insert(answer{psn: countBase + 2, npkts: 6, fresh: true})
	a.list[0].sent = 3
	if v := a.freshSpace(); v != refuseInvalid {
		t.Fatalf("freshSpace() = %d with an answer in progress, want %d", v, refuseInvalid)
	}
	if !a.insertRepeat(answer{psn: countBase, npkts: 8}) {
		t.Fatal("the duplicate was rejected")
	}
	if w := a.list[a.first]; w.psn != countBase {
		t.Fatalf("the first answer is that of PSN %d, want %d", w.psn, uint64(countBase))
	}
	a.pop()
	if v := a.freshSpace(); v != accept {
		t.Errorf("freshSpace() = %d after the duplicate, want %d", v, accept)
	}
}
