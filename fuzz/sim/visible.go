package sim

import (
	"bytes"
	"slices"

	"github.com/gorxe/gorxe/roce"
)

// watch checks the memory model of polled memory (rule 2 in mr/doc.go) for a WRITE: when its last
// bytes are visible at the peer, so are the rest of it and all earlier WRITEs of the connection.
// One WRITE of each side is watched at a time, from the moment it is posted.
type watch struct {
	o    *op
	tail int   // bytes of its last packet that are compared
	rest []*op // earlier WRITEs that were pending when it was posted
}

// maxTail is how many bytes of the last packet a watch compares.
const maxTail = 8

// watchFor starts a watch for a WRITE that was just posted, if possible.
func (s *side) watchFor(o *op) {
	n := len(o.data)
	if s.watch.o != nil || s.c.cfg.typ != roce.RC || n == 0 || !o.plainWrite() {
		return
	}
	tail := min(maxTail, (n-1)%s.pathMTU+1)
	if bytes.Equal(o.target.at(o.toff+n-tail, tail), o.data[n-tail:]) {
		return // it would be visible at once
	}
	s.watch = watch{o: o, tail: tail}
	for _, p := range s.pending {
		switch {
		case p == o || len(p.data) == 0 || !p.writes():
		case !p.plainWrite() || p.touches(o):
			s.watch.o = nil
			return
		default:
			s.watch.rest = append(s.watch.rest, p)
		}
	}
	for i, p := range s.watch.rest {
		if slices.ContainsFunc(s.watch.rest[i+1:], p.touches) {
			s.watch.rest[i] = nil // the later one may have replaced its data
		}
	}
}

// plainWrite reports whether the operation is a WRITE that must succeed while its target lives.
func (o *op) plainWrite() bool {
	return o.writes() && !o.crime && o.target != nil && o.target.alive && o.target == o.s.dst
}

// touches reports whether both write to the same memory.
func (o *op) touches(p *op) bool {
	return p.writes() && p.target == o.target && p.toff < o.toff+len(o.data) &&
		o.toff < p.toff+len(p.data)
}

// overwrites ends or reduces the watch when a later operation may change what it looks at.
func (s *side) overwrites(o *op) {
	w := &s.watch
	if w.o == nil || !o.writes() {
		return
	}
	if o.touches(w.o) {
		w.o = nil
		return
	}
	for i, p := range w.rest {
		if p != nil && o.touches(p) {
			w.rest[i] = nil
		}
	}
}

// look ends the watch if the WRITE is visible, and checks what must be visible then.
func (s *side) look() {
	o := s.watch.o
	if o == nil {
		return
	}
	if !o.target.alive {
		s.watch.o = nil
		return
	}
	n := len(o.data)
	real := o.target.at(o.toff, n)
	if !bytes.Equal(real[n-s.watch.tail:], o.data[n-s.watch.tail:]) {
		return
	}
	s.watch.o = nil
	s.w.res.Watched++
	if !bytes.Equal(real, o.data) {
		s.w.failf("%v: its last bytes are visible before the rest", o)
	}
	for _, p := range s.watch.rest {
		if p != nil && p.target.alive && !bytes.Equal(p.target.at(p.toff, len(p.data)), p.data) {
			s.w.failf("%v is visible before %v, an earlier WRITE", o, p)
		}
	}
}
