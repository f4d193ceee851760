package perf

import (
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/gorxe/gorxe/roce"
)

// errNotZeros: the memory that a client of write-lat has written to is not as perftest's programs leave it.
var errNotZeros = errors.New("the client's first message is not of the zeros that ib_write_lat sends, so that its size cannot be seen: start this server with the client's -s")

// errNoWrite: this end has sent the first message of write-lat, and nothing came back.
var errNoWrite = errors.New("the client does not answer a first message of 4096 bytes: if it runs write-lat with larger ones, start this server with the client's -s")

// written watches the memory that a client of write-lat WRITEs to, whose size of messages nobody told. perftest sends
// zeros that end with a byte that counts the messages of one size, from 1; after its last message of one size comes
// the first one of double that (-a).
//
// The server of write-lat sends the first message, and does not know its size either. It writes ones all over the first
// page of the client's buffer, of which every perftest has one at least: the last byte of any message up to
// that size then counts as its first. Larger ones begin when a second size is seen, for then the client
// runs all sizes, and has memory for the largest.
type written struct {
	mr     *roce.MR
	in     int // offset of the buffer
	length int // of the buffer
	size   int // of the messages; 0: not known yet
	fixed  bool
	more   bool // this message is the first of another size
	number byte // of the last message seen

	at int // how far the buffer has been searched
}

// watchMemory watches length bytes from offset in, for messages of size bytes if that is not 0.
func watchMemory(mr *roce.MR, in, length, size int) *written {
	return &written{mr: mr, in: in, length: length, size: size, fixed: size > 0}
}

// untouched tells whether nothing has been written yet. A bandwidth test writes to the first page of its buffer.
func untouched(mr *roce.MR, in int) bool {
	for off := 0; off < pageBytes; off += wordSize {
		if mr.Load64(in+off) != 0 {
			return false
		}
	}
	return true
}

const pageBytes = 4096

func (w *written) byteAt(n int) byte { return w.mr.Load8(w.in + n - 1) }

// look tells whether a new message is there: then size and number are its.
func (w *written) look() bool {
	w.more = false
	switch {
	case w.size == 0:
		for n := 1; n <= w.length; n *= 2 {
			if w.byteAt(n) == 1 {
				w.size, w.number = n, 1
				return true
			}
		}
		return false
	case w.byteAt(w.size) == w.number+1:
		w.number++
		return true
	case !w.fixed && w.number > 0 && 2*w.size <= w.length && w.byteAt(2*w.size) == 1:
		w.size, w.number, w.more = 2*w.size, 1, true
		return true
	}
	return false
}

// search looks for the first message's last byte a piece further on: its size need not be a power of two.
func (w *written) search() error {
	if w.size > 0 {
		return nil
	}
	end := min(w.at+searchBytes, w.length)
	for ; w.at < end; w.at += wordSize {
		v := w.mr.Load64(w.in + w.at)
		if v == 0 {
			continue
		}
		var b [wordSize]byte
		binary.NativeEndian.PutUint64(b[:], v)
		first := bits.TrailingZeros64(binary.LittleEndian.Uint64(b[:])) / 8
		if b[first] != 1 {
			return errNotZeros
		}
		w.size = w.at + first + 1 // look finds it: number is still 0
		return nil
	}
	if w.at >= w.length {
		w.at = 0
	}
	return nil
}
