package halfopen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// requests are the requests of a test, in a bubble of testing/synctest.
type requests struct {
	t *testing.T
	*Slots
	slots map[string]*Slot
	ended []string // names of replaced requests
}

func newRequests(t *testing.T, n int) *requests {
	return &requests{t: t, Slots: New(n), slots: map[string]*Slot{}}
}

// take takes a slot for a request of 10.0.x.1, where x is the first letter of the name. A replaced
// request releases its slot at once. It returns how long it waited.
func (r *requests) take(name string) time.Duration {
	r.t.Helper()
	begin := time.Now()
	var s *Slot
	stop := func(err error) {
		if !errors.Is(err, ErrReplaced) {
			r.t.Errorf("request %s ends with %v, want ErrReplaced", name, err)
		}
		r.ended = append(r.ended, name)
		go s.Release() // Take holds a lock
	}
	s, err := r.Take(context.Background(), peer(name), stop)
	if err != nil {
		r.t.Fatalf("Take() of %s: %v", name, err)
	}
	r.slots[name] = s
	return time.Since(begin)
}

func peer(name string) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, name[0], 1}) }

// empty checks that nothing is left of any request. Prefixes that were hurried are left until a
// request comes after calmTime.
func (r *requests) empty() {
	r.t.Helper()
	time.Sleep(calmTime)
	r.take("z")
	r.slots["z"].Release()
	synctest.Wait()
	if len(r.taken) != 0 || len(r.open) != 0 || len(r.by) != 0 || r.ending != 0 {
		r.t.Errorf("at the end: %d slots are taken, %d open requests, %d prefixes, %d end; want 0",
			len(r.taken), len(r.open), len(r.by), r.ending)
	}
}

// Requests come one after the other, without a pause except where the table has one. The last one
// waits, and the table tells which request it replaces. The first letter of a name is the prefix.
func TestReplacement(t *testing.T) {
	const pause = "+" // MaxTime passes
	for _, c := range []struct {
		name     string
		slots    int
		requests []string
		kept     []string
		replaced string
		wait     time.Duration
	}{
		{"free slot", 4, []string{"a", "b", "c", "d"}, nil, "", 0},
		{"oldest", 2, []string{"a", "b", pause, "c"}, nil, "a", 0},
		{"too early", 2, []string{"a", "b", "c"}, nil, "a", MaxTime},
		{"prefix with the most", 4, []string{"a", "b1", "b2", "c", pause, "d"}, nil, "b1", 0},
		{"newer ones of that prefix", 4, []string{"a", pause, "b1", "b2", "c", "d"}, nil, "b1",
			MaxTime},
		{"oldest of several with the most", 5, []string{"a", "b1", "c1", "c2", "b2", pause, "d"}, nil,
			"b1", 0},
		{"not a kept one", 3, []string{"a", "b", "c", pause, "d"}, []string{"a"}, "b", 0},
		{"free slots for one prefix", 8, []string{"a1", "a2", "a3", pause, "a4"}, nil, "", 0},
		{"no free slot for one prefix", 3, []string{"a1", "a2", "a3", pause, "a4"}, nil, "a1", 0},
		{"kept ones do not count", 5, []string{"a1", "a2", "a3", "b1", "b2", pause, "c"},
			[]string{"a1", "a2"}, "b1", 0},
		{"one slot", 1, []string{"a", pause, "b"}, nil, "a", 0},
		{"no slots means one", -1, []string{"a", pause, "b"}, nil, "a", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRequests(t, c.slots)
				var wait time.Duration
				for i, name := range c.requests {
					if name == pause {
						time.Sleep(MaxTime)
						continue
					}
					if i == len(c.requests)-1 {
						for _, k := range c.kept {
							r.slots[k].Keep()
						}
						if len(r.ended) > 0 {
							t.Fatalf("%v are replaced before the last request", r.ended)
						}
					}
					wait = r.take(name)
				}
				synctest.Wait()
				if got := fmt.Sprint(r.ended); got != fmt.Sprint(list(c.replaced)) || wait != c.wait {
					t.Errorf("%s are replaced after %v, want %s after %v", got, wait, list(c.replaced),
						c.wait)
				}
				for _, s := range r.slots {
					s.Release()
				}
				r.empty()
			})
		})
	}
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return []string{s}
}

// Slots of requests that were kept are never taken away: Take waits until one is released, or until
// its context ends.
func TestKeptSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 2)
		for _, name := range []string{"a", "b"} {
			r.take(name)
			r.slots[name].Keep()
			r.slots[name].Keep()
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		begin := time.Now()
		if _, err := r.Take(ctx, peer("c"), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Take() without a free slot = %v, want %v", err, context.DeadlineExceeded)
		}
		if d := time.Since(begin); d != time.Hour {
			t.Errorf("Take() fails after %v, want 1h", d)
		}
		time.AfterFunc(time.Second, r.slots["a"].Release)
		if d := r.take("c"); d != time.Second || len(r.ended) != 0 {
			t.Errorf("Take() waits %v for a slot that is free after 1s; %v are replaced", d, r.ended)
		}
		for range 2 { // the second call must not free the slot of another request
			r.slots["a"].Release()
		}
		if got := len(r.taken); got != 2 {
			t.Errorf("%d slots are taken, want 2", got)
		}
		r.slots["b"].Release()
		r.slots["c"].Release()
		r.empty()
	})
}

// A replaced request keeps its slot until it is released. If that takes very long, the next oldest
// request is replaced too.
func TestSlowRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 2)
		var ended []int
		var slots [2]*Slot
		for i := range slots {
			s, err := r.Take(context.Background(), peer(string(rune('a'+i))), func(error) {
				ended = append(ended, i)
				if i == 1 {
					go slots[1].Release()
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			slots[i] = s
			time.Sleep(MaxTime)
		}
		if d := r.take("c"); d != releaseTime || fmt.Sprint(ended) != "[0 1]" {
			t.Errorf("Take() waits %v and replaces %v, want %v and [0 1]", d, ended, releaseTime)
		}
		slots[0].Release()
		r.slots["c"].Release()
		r.empty()
	})
}

// During a flood of requests from one prefix, requests of others get a slot soon, and are not
// replaced.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 16)
		var flood []*Slot
		for i := range 1000 {
			if i%100 == 50 {
				name := string(rune('a' + i/100))
				if d := r.take(name); d > MinTime {
					t.Errorf("request %s waits %v, want at most %v", name, d, MinTime)
				}
				time.AfterFunc(10*MinTime, r.slots[name].Release) // a slow peer
			}
			var s *Slot
			s, err := r.Take(context.Background(), peer("x"), func(error) { go s.Release() })
			if err != nil {
				t.Fatal(err)
			}
			flood = append(flood, s)
		}
		if len(r.ended) > 0 {
			t.Errorf("%v are replaced, want none", r.ended)
		}
		time.Sleep(10 * MinTime)
		for _, s := range flood {
			s.Release()
		}
		r.empty()
	})
}

// Many honest peers of one prefix that connect at once, to a busy machine, are not replaced.
func TestStorm(t *testing.T) {
	for _, late := range []time.Duration{MinTime / 2, MaxTime / 3, MaxTime - 1} {
		synctest.Test(t, func(t *testing.T) {
			r := newRequests(t, 32)
			for i := range 200 {
				name := fmt.Sprint("a", i)
				r.take(name)
				s := r.slots[name]
				time.AfterFunc(late, func() {
					s.Keep()
					s.Release()
				})
			}
			if len(r.ended) > 0 {
				t.Errorf("confirmed after %v: %d of 200 are replaced, want none", late, len(r.ended))
			}
			time.Sleep(late)
			r.empty()
		})
	}
}

// A flood of requests that nobody confirms reduces the patience to MinTime, with the prefix that
// sends it, or with all if it comes from many. Peers that confirm late raise it, and so does the
// end of the flood.
func TestPatience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 8)
		flood := func(n, prefixes int) {
			for i := range n {
				r.take(fmt.Sprintf("%c%d", 'q'+i%prefixes, i))
			}
		}
		expect := func(when string, p *patience, least, most time.Duration) {
			t.Helper()
			r.mu.Lock()
			defer r.mu.Unlock()
			if got := p.allowed(); got < least || got > most {
				t.Errorf("patience %s: %v, want %v to %v", when, got, least, most)
			}
		}
		expect("at first", &r.others, MaxTime, MaxTime)
		flood(30, 1)
		flooder := r.slots["q0"].from
		expect("with the prefix of a flood", &flooder.own, MinTime, MinTime)
		expect("with others", &r.others, MaxTime, MaxTime)
		for _, s := range r.slots {
			s.Release()
		}
		flood(1, 1)
		if r.slots["q0"].from != flooder {
			t.Error("the prefix of a flood is forgotten before calmTime")
		}
		expect("with it after a pause", &flooder.own, MinTime, MinTime)

		flood(40, 8)
		expect("in a flood of many prefixes", &r.others, MinTime, MinTime)
		for range 5 {
			r.take("a")
			time.Sleep(MinTime * 4 / 5)
			r.slots["a"].Keep()
			r.slots["a"].Release()
		}
		expect("after late confirmations", &r.others, 2*MinTime, 4*MinTime)
		flood(40, 8)
		expect("in a flood again", &r.others, MinTime, MinTime)
		time.Sleep(calmTime)
		expect("after the flood", &r.others, MaxTime, MaxTime)
		expect("with one prefix after the flood", &flooder.own, MaxTime, MaxTime)
		for _, s := range r.slots {
			s.Release()
		}
		r.empty()
		var none *Slot // in virtual time
		if !none.Keep() {
			t.Error("Keep() of a nil Slot = false")
		}
		none.Release()
	})
}

// An honest peer that is slow is not replaced because of a flood of another prefix, even if its own
// prefix has its share.
func TestFloodOfOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 8)
		for i := range 30 {
			r.take(fmt.Sprint("x", i))
		}
		for _, name := range []string{"a1", "a2", "a3"} { // one more than the share
			r.take(name)
			time.Sleep(MaxTime / 4)
		}
		for _, name := range []string{"a1", "a2", "a3"} {
			if !r.slots[name].Keep() {
				t.Errorf("request %s is replaced after %v", name, time.Since(r.slots[name].since))
			}
		}
		if r.slots["x0"].Keep() {
			t.Error("Keep() of a replaced request = true")
		}
		for _, s := range r.slots {
			s.Release()
		}
		r.empty()
	})
}

// The number of prefixes that are remembered is limited.
func TestHurriedPrefixes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRequests(t, 4)
		for i := range 100 {
			for range 2 {
				r.take(string(rune('A' + i)))
			}
			for _, g := range r.by {
				g.own.shorten()
			}
			if len(r.by) > 2*r.max {
				t.Fatalf("%d prefixes are remembered, want at most %d", len(r.by), 2*r.max)
			}
		}
		for _, s := range r.slots {
			s.Release()
		}
		for _, s := range slices.Clone(r.open) {
			s.Release()
		}
		r.empty()
	})
}

// While replaced requests of a flood release their slots late, as on a busy machine, a request of
// another prefix is not replaced.
func TestFloodWithSlowReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slots = 16
		r := newRequests(t, slots)
		r.take("a")
		var flood []*Slot
		for range 100 {
			var s *Slot
			s, err := r.Take(context.Background(), peer("x"), func(error) {
				time.AfterFunc((slots+2)*MinTime, s.Release)
			})
			if err != nil {
				t.Fatal(err)
			}
			flood = append(flood, s)
		}
		if len(r.ended) > 0 {
			t.Errorf("%v are replaced, want none", r.ended)
		}
		r.slots["a"].Release()
		for _, s := range flood {
			s.Release()
		}
		r.empty()
	})
}

// After any sequence of calls the number of taken slots is within the bound, and prefixes are
// counted correctly.
func TestRandomCalls(t *testing.T) {
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			n := 1 + random.IntN(9)
			r := newRequests(t, n)
			var slots []*Slot
			for range 200 {
				switch random.IntN(6) {
				case 0, 1, 2:
					ctx, cancel := context.WithTimeout(context.Background(), MinTime)
					var s *Slot
					s, err := r.Take(ctx, peer(string(rune('a'+random.IntN(4)))), func(error) {
						go s.Release()
					})
					if cancel(); err == nil {
						slots = append(slots, s)
					}
				case 3:
					if len(slots) > 0 {
						slots[random.IntN(len(slots))].Keep()
					}
				case 4:
					if len(slots) > 0 {
						slots[random.IntN(len(slots))].Release()
					}
				default:
					time.Sleep(time.Duration(random.Int64N(int64(2 * MinTime))))
				}
				synctest.Wait()
				counts := map[*group]int{}
				for _, s := range r.open {
					counts[s.from]++
				}
				for g, want := range counts {
					if g.n != want || r.by[g.prefix] != g {
						t.Fatalf("seed %d: prefix %v has %d open requests, want %d", seed, g.prefix, g.n,
							want)
					}
				}
				active := 0
				for _, g := range r.by {
					if g.n > 0 {
						active++
					}
				}
				if len(r.taken) > n || len(r.open) > len(r.taken) || active != len(counts) {
					t.Fatalf("seed %d: %d slots taken of %d, %d open requests, %d prefixes of %d", seed,
						len(r.taken), n, len(r.open), active, len(counts))
				}
			}
			for _, s := range slots {
				s.Release()
			}
			r.empty()
		})
	}
}
