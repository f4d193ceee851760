package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/limit"
)

// Default limits of a Server, and the number of connections that it refuses at a time. Refusing
// takes a moment, because the peer must read the error before the connection is closed.
const (
	DefaultSessions  = 32 // at a time, from all peers
	DefaultPerPrefix = 8  // at a time, from one prefix
	maxRefusals      = 64
)

// errEvicted means that a connection was closed before it sent a request.
var errEvicted = errors.New("too many connections have not sent a request: " +
	"closed the oldest one of the prefix that has most of them")

// limits counts the sessions and refusals of a Server.
type limits struct {
	mu       sync.Mutex
	sessions *limit.Shares
	refusals *guard.Limiter
	max      int // sessions
}

func (l *limits) init(sessions, perPrefix int) {
	l.max = cmp.Or(sessions, DefaultSessions)
	l.sessions = limit.NewShares(int64(cmp.Or(perPrefix, DefaultPerPrefix)), int64(l.max))
	l.refusals = guard.NewLimiter(maxRefusals)
}

// check returns an error if the peer gets no session at the moment.
func (l *limits) check(peer netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.take(peer)
	if err == nil {
		l.sessions.Return(peer, 1)
	}
	return err
}

// admit counts a new session, or returns an error if there are too many.
func (l *limits) admit(peer netip.Addr) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.take(peer)
}

func (l *limits) take(peer netip.Addr) error {
	if l.sessions.TakeFair(peer, 1) {
		return nil
	}
	switch own, total := l.sessions.Used(peer); {
	case total >= int64(l.max) && l.max == 1:
		return fmt.Errorf("%w with another client: try again when it has ended", guard.ErrBusy)
	case total >= int64(l.max):
		return fmt.Errorf("%w with %d sessions: try again later", guard.ErrBusy, total)
	default:
		return fmt.Errorf("%w with %d sessions of clients in %v: end one of them first",
			guard.ErrBusy,
			own, limit.Prefix(peer))
	}
}

func (l *limits) leave(peer netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sessions.Return(peer, 1)
}
