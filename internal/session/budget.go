package session

import (
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/internal/cli"
)

// Budget limits the memory that all sessions of a server use together. It is safe for concurrent
// use. A nil Budget has no limit.
type Budget struct {
	mu   sync.Mutex
	left int64
	size int64
}

// NewBudget returns a budget of size bytes.
func NewBudget(size int64) *Budget { return &Budget{left: size, size: size} }

// Take reserves n bytes until the caller calls release.
func (b *Budget) Take(n int64) (release func(), err error) {
	if b == nil {
		return func() {}, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return nil, fmt.Errorf("the session needs %s for buffers, but the server has only %s left of %s: "+
			"use smaller messages or fewer queue pairs, or try again later",
			cli.FormatSize(n), cli.FormatSize(b.left), cli.FormatSize(b.size))
	}
	b.left -= n
	return sync.OnceFunc(func() {
		b.mu.Lock()
		b.left += n
		b.mu.Unlock()
	}), nil
}
