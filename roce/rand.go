package roce

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
)

// safeRand returns a random source that is safe for concurrent use: f, or the system's if f is nil.
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

// cryptoRand buffers the system's random source, so that a key does not cost a system call.
type cryptoRand struct {
	buf  [256]byte
	left int // unused bytes, at the end of buf
}

func (c *cryptoRand) next() uint64 {
	if c.left == 0 {
		// crypto/rand.Read never returns an error.
		_, _ = rand.Read(c.buf[:])
		c.left = len(c.buf)
	}
	at := c.buf[len(c.buf)-c.left:]
	v := binary.LittleEndian.Uint64(at)
	clear(at[:8]) // do not keep returned values in memory
	c.left -= 8
	return v
}
