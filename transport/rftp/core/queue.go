package core

import "math/bits"

// ring is a queue. It allocates only to hold more elements than ever before.
type ring[T any] struct {
	v       []T
	head, n int
}

func (r *ring[T]) len() int { return r.n }

// push appends x.
func (r *ring[T]) push(x T) {
	if r.n == len(r.v) {
		v := make([]T, max(8, 2*r.n))
		copy(v[copy(v, r.v[r.head:]):], r.v[:r.head])
		r.v, r.head = v, 0
	}
	i := r.head + r.n
	if i >= len(r.v) {
		i -= len(r.v)
	}
	r.v[i] = x
	r.n++
}

// first returns the first element. The queue must not be empty.
func (r *ring[T]) first() T { return r.v[r.head] }

// pop removes the first element. The queue must not be empty.
func (r *ring[T]) pop() T {
	x := r.v[r.head]
	var none T
	r.v[r.head] = none
	if r.head++; r.head == len(r.v) {
		r.head = 0
	}
	r.n--
	return x
}

// popLast removes the last element. The queue must not be empty.
func (r *ring[T]) popLast() T {
	i := r.head + r.n - 1
	if i >= len(r.v) {
		i -= len(r.v)
	}
	x := r.v[i]
	var none T
	r.v[i] = none
	r.n--
	return x
}

// window is the set of sequence numbers that were used. All numbers below base are in it, and some
// of the next size numbers.
type window struct {
	base uint32
	size uint32
	bits []uint64 // a power of two
}

// newWindow returns a window of n numbers.
func newWindow(n int) window {
	size := 1
	for size*64 < n {
		size *= 2
	}
	return window{size: uint32(n), bits: make([]uint64, size)}
}

// fits reports whether seq is in the window.
func (w *window) fits(seq uint32) bool { return seq-w.base < w.size }

// has reports whether seq, which is in the window, was used.
func (w *window) has(seq uint32) bool {
	return w.bits[int(seq/64)&(len(w.bits)-1)]>>(seq%64)&1 != 0
}

// add uses seq, which is in the window, and moves the window beyond numbers that were used.
func (w *window) add(seq uint32) {
	mask := len(w.bits) - 1
	w.bits[int(seq/64)&mask] |= 1 << (seq % 64)
	for {
		word := &w.bits[int(w.base/64)&mask]
		// The bits below base are 0 again.
		run := bits.TrailingZeros64(^(*word >> (w.base % 64)))
		run = min(run, 64-int(w.base%64))
		if run == 0 {
			return
		}
		*word &^= (1<<run - 1) << (w.base % 64)
		w.base += uint32(run)
	}
}
