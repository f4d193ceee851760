package guard

import (
	"errors"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/limit"
)

// ErrRefused means that the access lists do not permit a peer.
var ErrRefused = errors.New("this server does not serve your address: see its --allow and --deny")

// ErrBusy means that a server has no session or memory left for a peer.
var ErrBusy = errors.New("busy")

// loopback are the addresses of clients on the same host.
var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("::1/128")}

// Reason tells why a server turned a peer away.
type Reason uint8

// The reasons.
const (
	Access  Reason = iota // the access lists refuse the peer
	Busy                  // there are too many sessions
	Lobby                 // there are too many connections without a request
	Address               // the peer named the address of another host
	Failed                // the session ended with an error
	numReasons
)

// reasonNames holds the names of the counters.
var reasonNames = [numReasons]string{"refused_access", "refused_busy", "refused_lobby",
	"refused_address", "failed_sessions"}

// Guard decides which peers a server serves and counts those that it turns away. The nil Guard
// permits everyone. A Guard is safe for concurrent use.
type Guard struct {
	access limit.Access
	local  func() []netip.Prefix // permitted if access.Allow is empty; nil: everyone

	start time.Time // times are counted from here, so that setting the clock changes nothing

	mu       sync.Mutex
	counts   [numReasons]uint64
	lines    *limit.Rate // about errors
	sessions *limit.Rate // about other sessions
	hidden   uint64      // lines about errors that were left out since the last one
	total    uint64      // lines that were left out
}

// New returns a Guard. If access.Allow is empty, it permits the prefixes that local returns at the
// time and loopback addresses, or everyone if local is nil. access.Deny has precedence.
func New(access limit.Access, local func() []netip.Prefix) *Guard {
	return &Guard{access: access, local: local, start: time.Now(), lines: newLines(rand.Uint64()),
		sessions: newSessionLines(rand.Uint64())}
}

// Permits reports whether a server may serve the peer, and counts a refusal.
func (g *Guard) Permits(peer netip.Addr) bool {
	if g == nil {
		return true
	}
	list := g.access
	if len(list.Allow) == 0 && g.local != nil {
		list.Allow = append(g.local(), loopback...)
	}
	if list.Permits(peer) {
		return true
	}
	g.Count(Access)
	return false
}

// Count counts a peer that was turned away.
func (g *Guard) Count(why Reason) {
	if g == nil {
		return
	}
	g.mu.Lock()
	g.counts[why]++
	g.mu.Unlock()
}

// Counts returns an iterator over the names and values of all counters.
func (g *Guard) Counts() iter.Seq2[string, uint64] {
	g.mu.Lock()
	counts, hidden := g.counts, g.total
	g.mu.Unlock()
	return func(yield func(string, uint64) bool) {
		for i, n := range counts {
			if !yield(reasonNames[i], n) {
				return
			}
		}
		yield("log_lines_hidden", hidden)
	}
}

// Allowed returns the prefixes that the Guard permits. An empty list means everyone.
func (g *Guard) Allowed() []netip.Prefix {
	if len(g.access.Allow) > 0 || g.local == nil {
		return slices.Clone(g.access.Allow)
	}
	return g.local()
}

// Denied returns the prefixes that the Guard refuses.
func (g *Guard) Denied() []netip.Prefix { return slices.Clone(g.access.Deny) }

// String describes who is permitted, for a status line.
func (g *Guard) String() string {
	allowed, everyone := g.Allowed(), len(g.access.Allow) == 0 && g.local == nil
	text := join(allowed)
	switch {
	case everyone || slices.Equal(allowed, anyone):
		text = "all addresses"
	case text == "":
		text = "no address"
	}
	if d := join(g.access.Deny); d != "" {
		text += " except " + d
	}
	return text
}

func join(list []netip.Prefix) string {
	var s []string
	for _, p := range list {
		s = append(s, p.String())
	}
	return strings.Join(s, ", ")
}
