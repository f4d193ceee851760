package sim

import "github.com/gorxe/gorxe/roce"

// window is a type 2 memory window that a side grants its peer, over memory that peers cannot
// access otherwise. It is bound by BIND_MW, used, and ended by LOCAL_INV or the peer's SEND with
// invalidate, repeatedly.
type window struct {
	mw     *roce.MW
	g      *region
	key    roce.RKey
	off, n int
	state  windowState
}

type windowState uint8

const (
	unbound windowState = iota
	binding             // BIND_MW is posted
	bound               // the peer may use it
	ending              // LOCAL_INV or SEND with invalidate is posted
)

const windowed = 8192 // bytes of the region that windows are bound to

func (s *side) newWindow() *window {
	w := &window{g: s.region(s.h, windowed, roce.LocalWrite|roce.MWBind)}
	var err error
	w.mw, err = s.h.PD.AllocMW(roce.MWType2)
	s.w.must(err, "memory window")
	return w
}

// windowOps uses this side's window or the peer's. Nil: there is nothing to do now.
func (s *side) windowOps() []*op {
	for _, o := range s.making {
		if o.onPost != nil {
			return nil // a window's state changes when that is posted
		}
	}
	mine, theirs := s.window, s.peer.window
	r := s.w.rng
	switch {
	case mine.state == unbound && oneIn(r, 2):
		return s.bind(mine)
	case mine.state == bound && oneIn(r, 4) && !s.peer.uses(mine.g):
		return s.unbind(mine)
	case theirs.state != bound:
		return nil
	case oneIn(r, 4):
		return s.invalidate(theirs)
	}
	return s.throughWindow(theirs)
}

// uses reports whether an operation on a region is outstanding.
func (s *side) uses(g *region) bool {
	for _, ops := range [][]*op{s.pending, s.making} {
		for _, o := range ops {
			if o.target == g {
				return true
			}
		}
	}
	return false
}

func (s *side) bind(w *window) []*op {
	r := s.w.rng
	n := 1 + r.IntN(windowed)
	off := r.IntN(windowed - n + 1)
	key, err := w.mw.NextRKey()
	if err != nil {
		return nil // too many keys were drawn for binds that were not posted
	}
	o := &op{s: s}
	o.wr.Op, o.wr.RKey, o.wr.Access = roce.OpBindMW, key, roce.RemoteWrite|roce.RemoteRead
	o.wr.SGEs = []roce.SGE{w.g.mr.SGE(off, n)}
	o.onPost = func() { w.state, w.key, w.off, w.n = binding, key, off, n }
	o.onSuccess = func() {
		if w.mw.RKey() != key && !s.c.closing && !s.mute { // the binding ends with the QP
			s.w.failf("%v succeeded, and the window's key is %#x, not %#x", o, w.mw.RKey(), key)
		}
		w.state = bound
	}
	return []*op{o}
}

func (s *side) unbind(w *window) []*op {
	o := &op{s: s}
	o.wr.Op, o.wr.InvKey = roce.OpLocalInv, w.key
	o.onPost = func() { w.state = ending }
	o.onSuccess = func() { s.ended(w, o) }
	return []*op{o}
}

func (s *side) ended(w *window, o *op) {
	if k := w.mw.RKey(); k != 0 {
		s.w.failf("%v has ended the window, and its key is still %#x", o, k)
	}
	w.state = unbound
}

// invalidate ends the peer's window by a SEND.
func (s *side) invalidate(w *window) []*op {
	o := &op{s: s}
	o.wr.Op, o.wr.InvKey = roce.OpSendInv, w.key
	// An unfenced READ is not done when the SEND after it is executed (IBA 10.8.3.3).
	o.wr.Flags |= roce.Fence
	s.from(o, s.size(s.c.cfg.slot))
	s.arrives(o)
	o.onPost = func() { w.state = ending }
	o.m.onReceive = func() { s.ended(w, o) }
	return []*op{o}
}

// throughWindow makes a WRITE or READ.
func (s *side) throughWindow(w *window) []*op {
	r := s.w.rng
	o := &op{s: s, target: w.g}
	n := max(0, min(r.IntN(w.n+1), s.budget, s.c.cfg.largest))
	o.toff = w.off + r.IntN(w.n-n+1)
	o.wr.Op = pick(r, roce.OpWrite, roce.OpWriteImm, roce.OpRead)
	if o.wr.Op == roce.OpRead {
		at, ok := s.landing(n)
		if !ok {
			return nil
		}
		o.land = split(r, s.land, at, n, 4)
		o.wr.SGEs = sges(o.land)
	} else {
		s.from(o, n)
		if o.wr.Op == roce.OpWriteImm {
			s.arrives(o)
		}
	}
	o.wr.RemoteAddr, _ = w.g.remote(o.toff)
	o.wr.RKey = w.key
	return []*op{o}
}

// deadWindow uses a window that its owner has ended.
func (s *side) deadWindow() []*op {
	w := s.peer.window
	if w.key == 0 || w.state != unbound {
		return nil
	}
	return s.access(w.g.mr.Addr()+uint64(w.off), w.key, 1+s.w.rng.IntN(w.n), roce.RemAccessErr)
}
