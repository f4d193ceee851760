package session

import (
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/internal/cli"
)

// Budget bounds the memory that all sessions of a server take together: what a
// stranger may ask for has an end.
type Budget struct {
	mu   sync.Mutex
	left int64
	size int64
}

// NewBudget makes a budget of size bytes.
func NewBudget(size int64) *Budget { return &Budget{left: size, size: size} }

// Take takes n bytes, to be given back by release.
func (b *Budget) Take(n int64) (release func(), err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n > b.left {
		return nil, fmt.Errorf("the server has %s left of %s for buffers, the session needs %s: use smaller messages or fewer queue pairs, or try again later",
			cli.FormatSize(b.left), cli.FormatSize(b.size), cli.FormatSize(n))
	}
	b.left -= n
	return sync.OnceFunc(func() {
		b.mu.Lock()
		b.left += n
		b.mu.Unlock()
	}), nil
}
