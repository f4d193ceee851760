package stock

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/roce"
)

var (
	// errNotZeros means that the client has written something that perftest's write-lat never
	// writes.
	errNotZeros = errors.New("the client's first message does not consist of zeros like ib_write_lat's, " +
		"so its size cannot be found: start this server with the client's -s")
	// errNoWrite means that the client has not replied to the server's first message.
	errNoWrite = errors.New("the client does not answer a first message of 4096 bytes: " +
		"if it runs write-lat with larger messages, start this server with the client's -s")
)

// searchBytes is the part of the buffer that writeWatcher.search searches at a time.
const searchBytes = 64 << 10

// writeWatcher watches the memory that a write-lat client writes to. It finds the size of the
// messages, which perftest does not tell. A message consists of zeros and a last byte that counts
// the messages of one size, from 1. In a test of all sizes (-a), the first message of the next size
// has twice the size.
//
// In write-lat the server sends first, without knowing the size either. It fills the first page of
// the client's buffer with ones: every perftest buffer has at least one page, and the last byte of
// any message up to this size then counts as the client's first message. The server sends larger
// first messages when it sees a second size, because the client then runs all sizes and has memory
// for the largest.
type writeWatcher struct {
	mr     *roce.MR
	in     int // offset of the buffer
	length int // of the buffer
	size   int // of the messages; 0: not known yet
	fixed  bool
	more   bool // the last message was the first of another size
	number byte // of the last message

	searched int // position of search
}

// newWriteWatcher watches length bytes from offset in for messages of size bytes. With size 0 it
// finds the size.
func newWriteWatcher(mr *roce.MR, in, length, size int) *writeWatcher {
	return &writeWatcher{mr: mr, in: in, length: length, size: size, fixed: size > 0}
}

// untouched reports whether the first page of a buffer is unused. A bandwidth test writes to it.
func untouched(mr *roce.MR, in int) bool {
	for off := 0; off < pageBytes; off += perf.AtomicBytes {
		if mr.Load64(in+off) != 0 {
			return false
		}
	}
	return true
}

// lastByte returns the last byte of a message of n bytes.
func (w *writeWatcher) lastByte(n int) byte { return w.mr.Load8(w.in + n - 1) }

// poll reports whether there is a new message. It then sets size and number.
func (w *writeWatcher) poll() bool {
	w.more = false
	switch {
	case w.size == 0:
		for n := 1; n <= w.length; n *= 2 {
			if w.lastByte(n) == 1 {
				w.size, w.number = n, 1
				return true
			}
		}
		return false
	case w.lastByte(w.size) == w.number+1:
		w.number++
		return true
	case !w.fixed && w.number > 0 && 2*w.size <= w.length && w.lastByte(2*w.size) == 1:
		w.size, w.number, w.more = 2*w.size, 1, true
		return true
	}
	return false
}

// search searches the next part of the buffer for the last byte of the first message, whose size
// need not be a power of two. If it finds the byte, the next poll returns true.
func (w *writeWatcher) search() error {
	if w.size > 0 {
		return nil
	}
	end := min(w.searched+searchBytes, w.length)
	for ; w.searched < end; w.searched += perf.AtomicBytes {
		v := w.mr.Load64(w.in + w.searched)
		if v == 0 {
			continue
		}
		var b [perf.AtomicBytes]byte
		binary.NativeEndian.PutUint64(b[:], v)
		first := bits.TrailingZeros64(binary.LittleEndian.Uint64(b[:])) / 8
		if b[first] != 1 {
			return errNotZeros
		}
		w.size = w.searched + first + 1
		return nil
	}
	if w.searched >= w.length {
		w.searched = 0
	}
	return nil
}
