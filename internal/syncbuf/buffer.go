package syncbuf

import (
	"bytes"
	"sync"
)

// Buffer collects what is written to it. The zero value is ready to use. It is safe for concurrent
// use.
type Buffer struct {
	// Limit is the number of bytes that the buffer keeps; 0: all. What exceeds it is discarded. Set
	// it before the first use.
	Limit int

	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends p. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	keep := len(p)
	if b.Limit > 0 {
		keep = min(keep, b.Limit-b.buf.Len())
	}
	b.buf.Write(p[:keep])
	return len(p), nil
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
