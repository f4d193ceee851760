package halfopen

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
)

const (
	// MinTime is how long a peer may take to confirm its connection before a newer request can
	// replace its own.
	MinTime = 50 * time.Millisecond
	// share is the fraction of the slots that one prefix (limit.Prefix) may keep for longer than
	// MinTime.
	share = 4
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
}

// group counts the requests of one prefix in Slots.open.
type group struct {
	prefix netip.Prefix
	n      int
}

// Slot is the slot of one request. Its methods may be called several times.
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

// Take waits for a slot for a request of peer. If there is none, it replaces the oldest request of
// the prefix that has the most, after MinTime: it calls the stop of that request with ErrReplaced.
// The slot becomes free when its owner calls Release, which it should do soon. Take fails only if
// ctx ends.
func (s *Slots) Take(ctx context.Context, peer netip.Addr, stop context.CancelCauseFunc) (
	*Slot, error) {
	prefix := limit.Prefix(peer)
	s.replaceOwn(prefix)
	if err := s.wait(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.by[prefix]
	if g == nil {
		g = &group{prefix: prefix}
		s.by[prefix] = g
	}
	g.n++
	o := &Slot{of: s, from: g, since: time.Now(), stop: stop}
	s.open = append(s.open, o)
	return o, nil
}

// wait waits for a slot.
func (s *Slots) wait(ctx context.Context) error {
	for {
		select {
		case s.taken <- struct{}{}:
			return nil
		default:
		}
		retry := time.NewTimer(s.replaceAny())
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

// replaceOwn replaces the oldest request of a prefix that has its share.
func (s *Slots) replaceOwn(prefix netip.Prefix) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.by[prefix]
	if g == nil || g.n < s.share() {
		return
	}
	if o := s.oldest(g.n, g); time.Since(o.since) >= MinTime {
		s.replace(o)
	}
}

// replaceAny replaces the oldest request of the prefix that has the most. It returns when to try
// again if its slot is not free by then.
func (s *Slots) replaceAny() time.Duration {
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
	o := s.oldest(most, nil)
	if age := time.Since(o.since); age < MinTime {
		return MinTime - age
	}
	s.replace(o)
	return MinTime
}

// oldest returns the oldest request of a prefix that has n, which is g unless g is nil. There must
// be one. The caller holds mu.
func (s *Slots) oldest(n int, g *group) *Slot {
	i := slices.IndexFunc(s.open, func(o *Slot) bool {
		return o.from.n == n && (g == nil || o.from == g)
	})
	return s.open[i]
}

// share returns the number of slots that one prefix may keep.
func (s *Slots) share() int { return max(1, s.max/share) }

// replace stops a request. The caller holds mu.
func (s *Slots) replace(o *Slot) {
	o.stop(ErrReplaced)
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
	if o.from.n--; o.from.n == 0 {
		delete(s.by, o.from.prefix)
	}
}

// Keep ends the possibility that the request is replaced. Its slot remains taken.
func (o *Slot) Keep() {
	o.of.mu.Lock()
	o.of.remove(o)
	o.of.mu.Unlock()
}

// Release frees the slot.
func (o *Slot) Release() {
	o.Keep()
	o.once.Do(func() {
		<-o.of.taken
		o.of.mu.Lock()
		defer o.of.mu.Unlock()
		if o.ended {
			o.of.ending--
		}
	})
}
