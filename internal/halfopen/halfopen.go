package halfopen

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
)

const (
	// MinTime and MaxTime limit the patience with peers: how long a peer may take to confirm its
	// connection before a newer request can replace its own. Hundreds of honest peers that connect
	// to a busy machine at once may need much longer than MinTime.
	MinTime = 50 * time.Millisecond
	MaxTime = time.Second
	// calmTime is how long after the latest replacement the patience is MaxTime again. Forged
	// requests that fill all slots can therefore delay honest ones by MaxTime once in calmTime.
	calmTime = 10 * time.Second
	// share is the fraction of the slots that one prefix (limit.Prefix) may take without being a
	// suspect: a flood of one that has more does not hurry the peers of others.
	share = 4
	// slowTime limits what a prefix may take to confirm a connection before its own newer requests
	// replace it. Its peers may be far away, and the repetition of a lost message takes 1 s.
	slowTime = 4 * time.Second
	// trips is how often a prefix may take the time that its latest confirmations took.
	trips = 4
	// doubts is how many requests of a prefix are replaced, without a confirmation, before its
	// earlier confirmations do not count any more: somebody may forge its address.
	doubts = 8
	// probes is the number of open requests from which on the oldest one of a prefix is kept for
	// slowTime. Otherwise no peer of a slow prefix would ever show how long it takes.
	probes = 8
	// releaseTime is how long Take waits for the slot of a replaced request before it replaces one
	// of a prefix that has no more than its share. On a busy machine, a slot may be released late.
	releaseTime = time.Second
)

// ErrReplaced is the cause of the context of a replaced request.
var ErrReplaced = errors.New("the peer did not confirm the connection before too many others asked for one")

// Slots limits the number of requests that are answered at a time. It is safe for concurrent use.
type Slots struct {
	max   int
	taken chan struct{} // one for each slot

	mu   sync.Mutex
	by   map[netip.Prefix]*group
	open []*Slot // can be replaced, oldest first
	// ending is the number of replaced requests whose slots are not free yet.
	ending   int
	replaced time.Time // the latest of them
	// others is the patience with prefixes that have no more than their share.
	others patience
}

// group is the state of one prefix.
type group struct {
	prefix netip.Prefix
	n      int // its requests in Slots.open
	// own is the patience while the prefix has more than its share, so that a flood of one prefix
	// does not hurry the peers of others.
	own patience
	// typical is the mean time of its latest confirmations, the last of them at confirmed.
	typical   time.Duration
	confirmed time.Time
	doubted   int // requests that were replaced since then
}

// idle reports whether nothing about the prefix need be remembered.
func (g *group) idle() bool {
	return g.n == 0 && g.own.calm() && time.Since(g.confirmed) >= calmTime
}

// confirm records that a peer has confirmed a connection after d.
func (g *group) confirm(d time.Duration) {
	if time.Since(g.confirmed) >= calmTime {
		g.typical = d
	}
	g.typical += (d - g.typical) / 4
	g.confirmed, g.doubted = time.Now(), 0
}

// needs returns how long the newer requests of the prefix let the older ones wait: what its
// confirmations take, even if that is longer than the patience.
func (g *group) needs(p *patience) time.Duration {
	if g.doubted >= doubts || time.Since(g.confirmed) >= calmTime {
		return p.allowed()
	}
	return max(p.allowed(), min(trips*g.typical, slowTime))
}

// patience is how long requests are not replaced. It is MaxTime at first. Each replacement reduces
// it, because the request may have been forged, and each late confirmation raises it, because peers
// are slow.
type patience struct {
	time     time.Duration // until calm
	replaced time.Time     // the latest request
}

// calm reports whether no request was replaced for calmTime.
func (p *patience) calm() bool { return time.Since(p.replaced) >= calmTime }

// allowed returns the time that a peer has at least.
func (p *patience) allowed() time.Duration {
	if p.calm() {
		return MaxTime
	}
	return p.time
}

// shorten records a replacement.
func (p *patience) shorten() {
	p.time, p.replaced = max(p.allowed()*3/4, MinTime), time.Now()
}

// lengthen records that a peer has confirmed a connection after d.
func (p *patience) lengthen(d time.Duration) {
	if target := min(4*d, MaxTime); target > p.time {
		p.time += (target - p.time) / 4
	}
}

// Slot is the slot of one request. Its methods may be called several times, and on a nil Slot.
type Slot struct {
	of    *Slots
	from  *group
	since time.Time
	stop  context.CancelCauseFunc
	once  sync.Once
	ended bool // it was replaced
}

// New returns n slots, at least one.
func New(n int) *Slots {
	n = max(n, 1)
	return &Slots{max: n, taken: make(chan struct{}, n), by: map[netip.Prefix]*group{}}
}

// Take takes a slot for a request of peer. While one is free, nothing is replaced. If there is
// none, Take replaces the oldest request of the prefix that has the most, after MinTime to MaxTime:
// it calls the stop of that request with ErrReplaced. If peer has that prefix itself, Take also
// lets the request have the time that confirmations of the prefix take, at most 4 s. The slot
// becomes free when its owner calls Release, which it should do soon. Take fails only if ctx ends.
func (s *Slots) Take(ctx context.Context, peer netip.Addr, stop context.CancelCauseFunc) (
	*Slot, error) {
	prefix := limit.Prefix(peer)
	if err := s.wait(ctx, prefix); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.by[prefix]
	if g == nil {
		maps.DeleteFunc(s.by, func(_ netip.Prefix, g *group) bool { return g.idle() })
		g = &group{prefix: prefix}
		s.by[prefix] = g
	}
	g.n++
	o := &Slot{of: s, from: g, since: time.Now(), stop: stop}
	s.open = append(s.open, o)
	return o, nil
}

// wait waits for a slot for a request of a prefix.
func (s *Slots) wait(ctx context.Context, prefix netip.Prefix) error {
	for {
		select {
		case s.taken <- struct{}{}:
			return nil
		default:
		}
		retry := time.NewTimer(s.replaceOne(prefix))
		select {
		case s.taken <- struct{}{}:
			retry.Stop()
			return nil
		case <-ctx.Done():
			retry.Stop()
			return ctx.Err()
		case <-retry.C:
		}
	}
}

// replaceOne replaces a request of the prefix that has the most, for a new one of prefix. It
// returns when to try again if its slot is not free by then.
func (s *Slots) replaceOne(prefix netip.Prefix) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	most := 0
	for _, o := range s.open {
		most = max(most, o.from.n)
	}
	switch {
	case most == 0: // no slot can be replaced, or a replaced one becomes free
		return MinTime
	case s.ending > 0 && most <= s.share():
		// The senders of the others may be honest.
		if wait := releaseTime - time.Since(s.replaced); wait > 0 {
			return min(wait, MinTime)
		}
	}
	o := s.oldest(most)
	p := s.patience(o.from)
	need := p.allowed()
	if o.from.prefix == prefix {
		need = o.from.needs(p)
	}
	if wait := need - time.Since(o.since); wait > 0 {
		return min(wait, MinTime) // the patience may become shorter meanwhile
	}
	s.replace(o, p)
	return MinTime
}

// patience returns the patience with a prefix. The caller holds mu.
func (s *Slots) patience(g *group) *patience {
	if g.n > s.share() {
		return &g.own
	}
	return &s.others
}

// oldest returns the oldest request of the prefixes that have n, or the second one of its prefix if
// that has a probe. There must be one. The caller holds mu.
func (s *Slots) oldest(n int) *Slot {
	i := slices.IndexFunc(s.open, func(o *Slot) bool { return o.from.n == n })
	o := s.open[i]
	if n < probes || time.Since(o.since) >= slowTime {
		return o
	}
	k := slices.IndexFunc(s.open[i+1:], func(other *Slot) bool { return other.from == o.from })
	return s.open[i+1+k]
}

// share returns the number of slots that one prefix may take without being a suspect.
func (s *Slots) share() int { return max(1, s.max/share) }

// replace stops a request and shortens the patience with its prefix. The caller holds mu.
func (s *Slots) replace(o *Slot, p *patience) {
	o.stop(ErrReplaced)
	p.shorten()
	o.from.doubted++
	s.remove(o)
	o.ended, s.replaced = true, time.Now()
	s.ending++
}

// remove removes o from the requests that can be replaced. The caller holds mu.
func (s *Slots) remove(o *Slot) {
	i := slices.Index(s.open, o)
	if i < 0 {
		return
	}
	s.open = slices.Delete(s.open, i, i+1)
	// What is known of a prefix outlasts its requests, unless there are many.
	if o.from.n--; o.from.idle() || o.from.n == 0 && len(s.by) > s.max {
		delete(s.by, o.from.prefix)
	}
}

// Keep tells that the peer has confirmed the connection: the request can no longer be replaced. Its
// slot remains taken. Keep returns false if the request was replaced before.
func (o *Slot) Keep() bool {
	if o == nil {
		return true
	}
	s := o.of
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(s.open, o) {
		d := time.Since(o.since)
		s.patience(o.from).lengthen(d)
		o.from.confirm(d)
		s.remove(o)
	}
	return !o.ended
}

// Release frees the slot.
func (o *Slot) Release() {
	if o == nil {
		return
	}
	o.of.mu.Lock()
	o.of.remove(o)
	o.of.mu.Unlock()
	o.once.Do(func() {
		<-o.of.taken
		o.of.mu.Lock()
		defer o.of.mu.Unlock()
		if o.ended {
			o.of.ending--
		}
	})
}
