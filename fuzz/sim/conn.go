package sim

import (
	"bytes"
	"context"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/roce"
)

const (
	// pace is the longest time that a side waits before it posts again.
	pace = 200 * time.Microsecond
	// maxPatience is the longest wait for space in a full send queue.
	maxPatience = 5 * time.Millisecond
	// lateConnect is the largest delay between the two sides' connects.
	lateConnect = 2 * time.Millisecond
	// settle is how long an unreliable connection waits for messages in flight.
	settle = 50 * time.Millisecond
	// qkey is the Q_Key of all UD QPs.
	qkey = roce.QKey(0x1234567)
)

// finiteRNR is the doom of a connection whose RNR retries may run out.
const finiteRNR = "finite RNR retries"

// conn is a connection, or two UD QPs that exchange messages. After a failure it is created again.
type conn struct {
	w       *world
	cfg     *connConfig
	sides   [2]*side
	doomed  string // why it may fail; empty: it must not
	closing bool   // receives may be flushed
	dying   bool   // its end is scheduled
	ended   bool
	births  int
	regions []*region // of this life, on either host
}

// side is one QP of a connection and its work.
type side struct {
	w    *world
	h    *host
	c    *conn
	i    int
	peer *side
	q    *roce.QP
	ah   *roce.AH

	todo, budget int // operations left to post, bytes left to move

	dst   *region // at the peer: WRITE
	dstAt int     // unreliable: each byte is written once
	words *region // at the peer: targets of atomics
	word  [privateWords]uint64
	watch watch
	land  *region // here: destination of READs and atomics
	slots *slots  // receives

	window *window // that the peer may use; RC only

	making  []*op  // about to be posted
	pending []*op  // posted, oldest first
	lost    []*op  // failed: may have had a full or partial effect
	inbox   []*msg // in flight to this side, or received (unreliable)
	recvs   []*recv
	broken  bool // a send work request has failed
	deaf    bool // posts no more receives
	mute    bool // posts nothing anymore
	got     int  // messages received
	drain   bool // in SQD

	patience time.Duration // with a full send queue
	pathMTU  int           // bytes
}

func (c *conn) String() string {
	out := fmt.Sprintf("(%v, birth %d, doomed %q, dying %v)", c.cfg.typ, c.births, c.doomed,
		c.dying)
	for _, s := range c.sides {
		first := "-"
		if len(s.pending) > 0 {
			first = s.pending[0].String()
		}
		out += fmt.Sprintf("\n  side %d: %v, %d to post, %d pending (first: %s), %d to arrive, %d receives posted",
			s.i, s.q.State(), s.todo, len(s.pending), first, len(s.inbox), len(s.recvs))
	}
	return out
}

func (w *world) newConn(cfg *connConfig) *conn {
	c := &conn{w: w, cfg: cfg}
	for i := range c.sides {
		c.sides[i] = &side{w: w, h: w.hosts[i], c: c, i: i, todo: cfg.ops[i], budget: cfg.budget}
	}
	c.sides[0].peer, c.sides[1].peer = c.sides[1], c.sides[0]
	c.birth()
	return c
}

// birth creates QPs and memory and connects.
func (c *conn) birth() {
	c.births++
	c.doomed, c.closing, c.dying = "", false, false
	if c.cfg.options[0].RNRRetries+c.cfg.options[1].RNRRetries > 0 {
		c.doomed = finiteRNR
	}
	for _, s := range c.sides {
		s.create()
	}
	late := c.w.rng.IntN(2)
	for i, s := range c.sides {
		s.refill()
		if i == late && !c.w.sc.clean {
			c.live(c.w.randomDelay(lateConnect), s.connect)
		} else {
			s.connect()
		}
	}
}

// live runs f later if the connection is still in the same life.
func (c *conn) live(d time.Duration, f func()) {
	life := c.births
	c.w.after(d, func() {
		if c.births == life && !c.ended {
			f()
		}
	})
}

func (s *side) region(h *host, n int, access roce.Access) *region {
	g := h.newRegion(n, access)
	s.c.regions = append(s.c.regions, g)
	return g
}

func (s *side) create() {
	cfg, w := s.c.cfg, s.w
	var err error
	qc := roce.QPConfig{
		Type: cfg.typ, SendCQ: s.h.CQ, RecvCQ: s.h.RecvCQ, SendDepth: cfg.depth[s.i],
		RecvDepth: cfg.recvs[s.i],
		MaxInline: cfg.inline, SignalAll: cfg.sigAll, GIDIndex: &cfg.gid, Rate: cfg.rate[s.i],
	}
	if cfg.typ == roce.RC {
		qc.GoBackN, qc.Congestion = cfg.goBackN[s.i], &cfg.congestion[s.i]
	}
	if qc.Rate > 0 {
		qc.Burst = cfg.burst[s.i]
	}
	if cfg.inline < 0 {
		qc.MaxInline = 0
	}
	if cfg.srq[s.i] {
		qc.SRQ = s.h.srq.srq
	}
	s.w.qps++
	s.q, err = s.h.dev.CreateQP(s.h.PD, qc)
	w.must(err, "create a QP")
	s.h.sides[s.q.QPN()] = s
	s.pending, s.lost, s.inbox, s.recvs = nil, nil, nil, nil
	s.broken, s.deaf, s.mute, s.drain, s.got, s.dstAt = false, false, false, false, 0, 0
	s.word = [privateWords]uint64{}
	s.watch = watch{}

	far := s.peer.h
	s.dst = s.region(far, max(64<<10, 2*cfg.largest),
		roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.FlushGlobal)
	s.words = s.region(far, 8*privateWords, roce.LocalWrite|roce.RemoteAtomic)
	for i := range s.word {
		s.word[i] = word(s.words.at(8*i, 8))
	}
	s.land = s.region(s.h, 2*cfg.largest+4096, roce.LocalWrite)
	if cfg.typ == roce.RC {
		s.window = s.newWindow()
	}
	if !cfg.srq[s.i] {
		s.slots = s.newSlots(cfg.slot+s.grh(), cfg.recvs[s.i])
	}
}

// grh is the number of bytes that a receive reserves at its front.
func (s *side) grh() int {
	if s.c.cfg.typ == roce.UD {
		return roce.GRHLen
	}
	return 0
}

func (s *side) connect() {
	if s.c.dying || s.mute {
		return
	}
	w := s.w
	if s.c.cfg.typ == roce.UD {
		w.must(s.q.Activate(qkey), "activate")
		ah, err := s.h.dev.CreateAH(context.Background(), roce.AHAttr{
			Remote: s.peer.q.Local().GID, GIDIndex: &s.c.cfg.gid,
			PathOptions: s.c.cfg.options[s.i].PathOptions,
		})
		w.must(err, "address handle")
		s.ah = ah
	} else {
		w.must(s.q.Connect(context.Background(), s.peer.q.Local(), s.c.cfg.options[s.i]), "connect")
		s.connected()
	}
	s.c.live(w.randomDelay(pace), s.tick)
}

// tick posts something and schedules itself.
func (s *side) tick() {
	if s.c.dying || s.mute {
		return
	}
	if st := s.q.State(); st == roce.StateRTS || st == roce.StateSQD || st == roce.StateErr {
		s.postSome()
	}
	s.maybeDrain()
	s.maybeReclass()
	s.c.maybeEnd()
	if s.todo == 0 {
		return
	}
	wait := s.w.randomDelay(pace)
	if s.full() {
		s.patience = min(2*s.patience+pace/8, maxPatience)
		wait += s.patience
	} else {
		s.patience = 0
	}
	s.c.live(wait, s.tick)
}

// full reports whether the send queue is probably full: unsignaled work requests at the end of
// pending may be done already.
func (s *side) full() bool { return len(s.pending) >= s.c.cfg.depth[s.i] }

// maybeDrain goes through SQD.
func (s *side) maybeDrain() {
	if !s.w.sc.drains || s.drain || s.q.State() != roce.StateRTS || !oneIn(s.w.rng, 8) {
		return
	}
	s.drain = true
	s.w.must(s.q.Modify(&roce.Attr{State: roce.StateSQD}, roce.AttrState), "RTS to SQD")
}

// drained handles the event that ends SQD.
func (s *side) drained() {
	if !s.drain {
		s.w.failf("host %d: SQ_DRAINED for a QP that was not draining", s.h.i)
	}
	s.drain = false
	s.c.live(s.w.randomDelay(pace), func() {
		if s.q.State() == roce.StateSQD {
			s.w.must(s.q.Modify(&roce.Attr{State: roce.StateRTS}, roce.AttrState), "SQD to RTS")
		}
	})
}

// maybeEnd ends the connection when both sides have done all their work.
func (c *conn) maybeEnd() {
	if c.dying {
		return
	}
	for _, s := range c.sides {
		if s.todo > 0 || len(s.pending) > 0 || s.drain || s.q.State() < roce.StateRTS ||
			(c.cfg.typ == roce.RC && len(s.inbox) > 0) {
			return
		}
	}
	wait := c.w.randomDelay(time.Millisecond)
	if c.cfg.typ != roce.RC {
		wait = settle
	}
	c.die(wait)
}

// die ends this life of the connection after a while.
func (c *conn) die(d time.Duration) {
	if !c.dying {
		c.dying = true
		c.live(d, c.bury)
	}
}

// bury destroys both QPs, checks everything that they leave behind, and starts again if work is
// left.
func (c *conn) bury() {
	w := c.w
	c.closing = true
	for _, s := range c.sides {
		if !s.mute && oneIn(w.rng, 2) {
			w.must(s.q.Modify(&roce.Attr{State: roce.StateErr}, roce.AttrState), "to ERR")
		}
		w.must(s.q.Close(), "close a QP")
		s.h.reap()
	}
	for _, s := range c.sides {
		s.inquest()
		delete(s.h.sides, s.q.QPN())
		if s.ah != nil {
			w.must(s.ah.Close(), "close an address handle")
			s.ah = nil
		}
	}
	for _, s := range c.sides {
		s.reconcile()
	}
	for _, s := range c.sides {
		if s.window != nil {
			w.must(s.window.mw.Close(), "close a memory window")
		}
	}
	for _, g := range c.regions {
		g.close()
	}
	c.regions = nil
	if c.sides[0].broken || c.sides[1].broken {
		w.res.Failures++
	}
	left := c.sides[0].todo + c.sides[1].todo
	if left == 0 || c.births > maxRebirths {
		c.ended = true
		return
	}
	c.birth()
}

// inquest checks that everything posted has completed and everything acknowledged has arrived.
func (s *side) inquest() {
	// A destroyed QP completes everything unfinished. What has no completion was unsignaled and
	// succeeded.
	for len(s.pending) > 0 {
		o := s.pending[0]
		if s.broken || s.c.cfg.sigAll || o.wr.Flags&roce.Signaled != 0 {
			s.w.failf("%v, %d before the end of the queue, never completed", o, len(s.pending))
		}
		s.succeed(o)
	}
	if len(s.recvs) > 0 {
		s.w.failf("%d receives were posted and never completed", len(s.recvs))
	}
	if s.c.cfg.typ != roce.RC {
		return
	}
	for _, m := range s.inbox {
		if m.o.done {
			s.w.failf("%v completed, but the peer never received it", m.o)
		}
	}
	if s.c.doomed == "" && len(s.inbox) > 0 {
		s.w.failf("%d messages were never received", len(s.inbox))
	}
}

// reconcile checks the effects of failed operations: each may have had its whole effect, a part, or
// none. Then the model takes over the memory.
func (s *side) reconcile() {
	settleWrites(s.lost)
	for i := range s.word {
		s.reconcileWord(i)
	}
	for _, o := range s.lost {
		o.landed()
	}
}

// settleWrites checks that each byte in the target of WRITEs that may have happened is the old one
// or one that a WRITE brought, and copies it to the model.
func settleWrites(ops []*op) {
	for _, o := range ops {
		if !o.writes() || !o.target.alive || len(o.data) == 0 {
			continue
		}
		real, model := o.target.at(o.toff, len(o.data)), o.target.model(o.toff, len(o.data))
		if bytes.Equal(real, model) || bytes.Equal(real, o.data) {
			continue
		}
		for i := range real {
			if real[i] != model[i] && real[i] != o.data[i] &&
				!explained(ops, o.target, o.toff+i, real[i]) {
				o.s.w.failf("%v: byte %d is %#x: neither the old value nor one of a WRITE", o, i,
					real[i])
			}
		}
	}
	for _, o := range ops {
		if o.writes() && o.target.alive {
			o.target.accept(o.toff, len(o.data))
		}
	}
}

// explained reports whether a WRITE brings value v to an offset of a region.
func explained(ops []*op, g *region, off int, v byte) bool {
	for _, o := range ops {
		if o.writes() && o.target == g && off >= o.toff && off < o.toff+len(o.data) &&
			o.data[off-o.toff] == v {
			return true
		}
	}
	return false
}

// reconcileWord checks that the word is what the completed atomics left, possibly changed by some
// of the failed ones, in order.
func (s *side) reconcileWord(i int) {
	real, v := word(s.words.at(8*i, 8)), s.word[i]
	for _, o := range s.lost {
		if v == real {
			break
		}
		if o.atomic() && !o.crime && o.target == s.words && o.toff == 8*i {
			v = o.applyTo(v)
		}
	}
	if v != real {
		s.w.failf("side %d: word %d is %#x, which no order of the atomics explains; %#x completed",
			s.i, i, real, s.word[i])
	}
	s.words.accept(8*i, 8)
}

func word(b []byte) uint64 { return mr.FetchAdd(b, 0) }
