package roce

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// safeRand makes a random source that is safe for concurrent use: the caller's, or the system's.
func safeRand(f func() uint64) func() uint64 {
	if f == nil {
		f = new(cryptoRand).next
	}
	var mu sync.Mutex
	return func() uint64 {
		mu.Lock()
		defer mu.Unlock()
		return f()
	}
}

// cryptoRand reads the system's random source in small pieces, so that a key does not cost a system call.
type cryptoRand struct {
	buf  [256]byte
	left int // unused bytes, at the end of buf
}

func (c *cryptoRand) next() uint64 {
	if c.left == 0 {
		// crypto/rand.Read never fails: it ends the process if the system has no randomness.
		_, _ = rand.Read(c.buf[:])
		c.left = len(c.buf)
	}
	at := c.buf[len(c.buf)-c.left:]
	v := binary.LittleEndian.Uint64(at)
	clear(at[:8]) // what was handed out is not kept
	c.left -= 8
	return v
}
