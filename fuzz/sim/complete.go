package sim

import (
	"bytes"
	"slices"

	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

// reap processes completions and events.
func (h *host) reap() bool {
	did := false
	var wcs [16]roce.WC
	for _, cq := range []*roce.CQ{h.CQ, h.RecvCQ} {
		for cq.Len() > 0 {
			did = true
			for _, wc := range wcs[:cq.Poll(wcs[:])] {
				h.completed(&wc)
			}
		}
	}
	for {
		select {
		case e := <-h.dev.Events():
			did = true
			h.event(e)
			continue
		default:
		}
		return did
	}
}

func (h *host) event(e roce.Event) {
	h.events[e.Kind]++
	if e.QP == nil {
		return
	}
	s := h.sides[e.QP.QPN()]
	h.w.tracef("host %d event %s", h.i, e.Kind)
	if s != nil && s.q == e.QP && e.Kind == roce.EventSQDrained {
		s.drained()
		s.c.maybeEnd()
	}
}

// completed dispatches a completion.
func (h *host) completed(wc *roce.WC) {
	w := h.w
	w.res.Ops++
	w.res.Statuses[wc.Status]++
	w.note(uint64(w.now()), wc.ID, uint64(wc.Status), uint64(wc.ByteLen))
	w.tracef("host %d completion %d %v %v %d bytes", h.i, wc.ID, wc.Opcode, wc.Status, wc.ByteLen)
	h.completions++
	switch wc.Status {
	case roce.Success:
		w.res.Opcodes[wc.Opcode]++
	case roce.WRFlushErr:
		h.flushed++
	default:
		h.failed++
	}
	s := h.sides[wc.QPN]
	if s == nil {
		w.failf("host %d: completion %+v for an unknown QP", h.i, *wc)
	}
	if r := h.recvs[wc.ID]; r != nil {
		s.received(wc, r)
		return
	}
	s.sent(wc)
}

// sent checks the completion of a send work request: it is the oldest one, and the unsignaled ones
// before it have succeeded.
func (s *side) sent(wc *roce.WC) {
	w := s.w
	for len(s.pending) > 0 && s.pending[0].wr.ID != wc.ID {
		o := s.pending[0]
		if o.wr.Flags&roce.Signaled != 0 || s.c.cfg.sigAll || s.broken {
			w.failf("completion %+v, but the oldest that must complete is %v", *wc, o)
		}
		s.succeed(o)
	}
	if len(s.pending) == 0 {
		w.failf("side %d: completion %+v for nothing that was pending", s.i, *wc)
	}
	o := s.pending[0]
	if wc.Status != roce.Success {
		s.failed(o, wc.Status)
		return
	}
	if s.broken {
		w.failf("%v succeeded after a failed one", o)
	}
	if o.wr.Flags&roce.Signaled == 0 && !s.c.cfg.sigAll {
		w.failf("%v completes, unsignaled", o)
	}
	if why := verify.Send(wc, o.wr.Op, o.length()); why != "" {
		w.failf("%v completes with %s", o, why)
	}
	s.succeed(o)
	s.c.maybeEnd()
}

// failed checks that the first failure is one that o may have. All later ones are flushed.
func (s *side) failed(o *op, st roce.Status) {
	s.pending = s.pending[1:]
	s.lost = append(s.lost, o)
	if st == roce.RetryExcErr && s.c.doomed == "" && s.w.mayRunOut() {
		s.c.doomed = retriesRanOut
	}
	ok := s.c.doomed != "" &&
		(slices.Contains(o.allow, st) || st == roce.RetryExcErr || st == roce.WRFlushErr)
	if s.c.doomed == finiteRNR && o.receives() && st == roce.RNRRetryExcErr {
		ok = true
	}
	if s.c.doomed == receivesDied && o.receives() && st == roce.RemOpErr {
		ok = true // any message may be the one that uses the deregistered memory
	}
	if s.broken {
		ok = st == roce.WRFlushErr
	}
	if !ok {
		s.w.failf("%v fails with %v", o, st)
	}
	s.broken = true
	if s.c.cfg.typ != roce.RC {
		s.revive()
		return
	}
	s.c.die(s.w.randomDelay(maxStall))
}

// retriesRanOut is the doom of a connection of which the link lost every retransmission.
const retriesRanOut = "retries ran out"

// mayRunOut reports whether the link may lose all retransmissions of a packet or all their answers:
// once in a scenario, and only if more than 30 % of all round trips fail. While hosts pause, round
// trips can take more than a quarter of the Local ACK Timeout. Then there are no probes, and only
// the 8 timeouts of a packet count: all fail for one of 15,000 packets.
func (w *world) mayRunOut() bool {
	arrives := 1.0
	for _, p := range w.sc.plans {
		arrives *= (1 - p.Loss) * (1 - p.Corrupt)
	}
	w.ranOut++
	return w.ranOut == 1 && arrives < 0.7
}

// revive takes an unreliable QP from SQE back to RTS when everything is flushed.
func (s *side) revive() {
	if len(s.pending) > 0 || s.c.dying {
		return
	}
	if s.q.State() != roce.StateSQE {
		s.w.failf("side %d: a send failed, and the QP is in %v", s.i, s.q.State())
	}
	s.w.must(s.q.Modify(&roce.Attr{State: roce.StateRTS}, roce.AttrState), "SQE to RTS")
	s.broken, s.c.doomed = false, ""
	s.c.maybeEnd()
}

// succeed applies an operation to the model and checks the memory.
func (s *side) succeed(o *op) {
	w := s.w
	s.pending = s.pending[1:]
	o.done = true
	if o.crime {
		w.failf("%v succeeds, a crime", o)
	}
	if o.onSuccess != nil {
		o.onSuccess()
	}
	switch {
	case o.writes():
		s.wrote(o)
	case o.wr.Op == roce.OpRead:
		want := o.data
		if want == nil {
			want = o.target.model(o.toff, o.length())
		}
		if !holds(o.land, want) && (o.data != nil || !overlapped(o, s.pending)) {
			w.failf("%v from offset %d returned wrong data", o, o.toff)
		}
		o.landed()
	case o.atomic():
		s.added(o)
		o.landed()
	}
}

// landed applies what an operation fetched, or may have fetched if it failed, to the model.
func (o *op) landed() {
	for _, p := range o.land {
		if p.g.alive {
			p.g.accept(p.off, p.n)
		}
	}
}

func (s *side) wrote(o *op) {
	if len(o.data) == 0 {
		return
	}
	real := o.target.at(o.toff, len(o.data))
	if o.gone || !o.target.alive {
		// The region was closed while the WRITE was in flight. The WRITE succeeded, so it arrived
		// before.
		if !bytes.Equal(real, o.data) && !overlapped(o, s.pending) {
			s.w.failf("%v succeeded on a closed region without its data", o)
		}
		return
	}
	if s.c.cfg.typ != roce.RC {
		s.lost = append(s.lost, o) // it is still in flight: any part may arrive
		return
	}
	copy(o.target.model(o.toff, len(o.data)), o.data)
	if !bytes.Equal(real, o.data) && !overlapped(o, s.pending) {
		s.w.failf("%v succeeded without its data", o)
	}
}

// added checks that an atomic fetched exactly what the atomics before it left.
func (s *side) added(o *op) {
	found := o.brought()
	if o.target == s.peer.h.shared {
		s.peer.h.added[o.toff/8].found(s.w, found)
		return
	}
	i := o.toff / 8
	if found != s.word[i] {
		s.w.failf("%v found %#x, want %#x", o, found, s.word[i])
	}
	s.word[i] = o.applyTo(found)
	if !anyPendingOn(s.pending, o) {
		if real := word(o.target.at(o.toff, 8)); real != s.word[i] {
			s.w.failf("%v left %#x, want %#x", o, real, s.word[i])
		}
	}
	copyWord(o.target.model(o.toff, 8), s.word[i])
}

func anyPendingOn(ops []*op, o *op) bool {
	return slices.ContainsFunc(ops,
		func(p *op) bool { return p.atomic() && p.target == o.target && p.toff == o.toff })
}

// counter is a word that many sides add 1 to: each must find another value.
type counter struct {
	asked uint64
	seen  map[uint64]bool
}

func (c *counter) found(w *world, v uint64) {
	if c.seen == nil {
		c.seen = map[uint64]bool{}
	}
	if c.seen[v] {
		w.failf("two FETCH_ADDs of 1 found %#x", v)
	}
	c.seen[v] = true
}
