package halfopen

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// clients run n clients of prefix a that each connect times times, one connection after the other,
// and confirm after what late returns. It returns the number of connections that were replaced.
func (r *requests) clients(n, times int, late func(i int) time.Duration) (replaced int) {
	type request struct {
		client, left int
	}
	queue := make(chan request, n) // Take is called for one request at a time, as by a listener
	for i := range n {
		queue <- request{i, times}
	}
	for i, open := 0, n; open > 0; i++ {
		q := <-queue
		ctx, stop := context.WithCancelCause(context.Background())
		s, err := r.Take(context.Background(), peer("a"), stop)
		if err != nil {
			r.t.Fatal(err)
		}
		done := q.left == 1
		go func() {
			select {
			case <-time.After(late(i)):
			case <-ctx.Done():
			}
			kept := s.Keep()
			s.Release()
			if r.mu.Lock(); !kept {
				replaced++
			}
			r.mu.Unlock()
			if !done {
				queue <- request{q.client, q.left - 1}
			}
		}()
		if done {
			open--
		}
	}
	time.Sleep(slowTime)
	return replaced
}

// Honest clients of one prefix, far away and on a lossy path, are not replaced: neither while slots
// are free, nor if they need more slots than there are.
func TestLossyPrefix(t *testing.T) {
	for _, n := range []int{20, 32, 100} {
		synctest.Test(t, func(t *testing.T) {
			r := newRequests(t, 32)
			got := r.clients(n, 20, func(i int) time.Duration {
				if i%20 == 7 {
					return 600*time.Millisecond + 1100*time.Millisecond // a message is repeated
				}
				return 600 * time.Millisecond
			})
			if got > 0 {
				t.Errorf("%d clients: %d of %d requests are replaced, want none", n, got, n*20)
			}
			r.empty()
		})
	}
}

// Honest clients whose round trips take longer than MaxTime, and that come all at once, are served
// as soon as the first one has shown how long they need.
func TestSlowHerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 32)
		got := r.clients(100, 20, func(int) time.Duration { return 1200 * time.Millisecond })
		if got > 200 {
			t.Errorf("%d of 2000 requests are replaced, want at most 200", got)
		}
		r.empty()
	})
}

// During a flood of one prefix, however fast, requests of others wait at most MinTime once the
// patience with it is short. Earlier confirmations of the prefix do not change that for long.
func TestFloodRates(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond,
		100 * time.Millisecond, time.Second} {
		for _, confirmed := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				r := newRequests(t, 32)
				if confirmed {
					r.take("x")
					time.Sleep(400 * time.Millisecond)
					r.slots["x"].Keep()
					r.slots["x"].Release()
				}
				var flood []*Slot
				send := func(n int) (longest time.Duration) {
					for range n {
						var s *Slot
						begin := time.Now()
						s, err := r.Take(context.Background(), peer("x"), func(error) { go s.Release() })
						if err != nil {
							t.Fatal(err)
						}
						longest = max(longest, time.Since(begin))
						flood = append(flood, s)
						time.AfterFunc(10*time.Second, s.Release) // the limit of a handshake
						time.Sleep(pause)
					}
					return longest
				}
				send(100)
				for i := range 10 {
					name := fmt.Sprint("a", i)
					if d := r.take(name); d > MinTime {
						t.Errorf("a request each %v, confirmed %v: another prefix waits %v, want at "+
							"most %v", pause, confirmed, d, MinTime)
					}
					time.AfterFunc(MaxTime/4, r.slots[name].Release)
					if d := send(32); d > MinTime { // others may have to wait behind it
						t.Errorf("a request each %v, confirmed %v: the flood waits %v, want at most %v",
							pause, confirmed, d, MinTime)
					}
				}
				if len(r.ended) > 0 {
					t.Errorf("%v are replaced, want none", r.ended)
				}
				for _, s := range flood {
					s.Release()
				}
				time.Sleep(10 * time.Second)
				r.empty()
			})
		}
	}
}
