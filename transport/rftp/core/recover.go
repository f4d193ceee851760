package core

import "fmt"

// recovery is what both sides do when data QPs fail. The source cannot know which of its WRITEs
// have arrived, because acknowledgments may be lost. It asks the sink, which first closes its QP,
// so that nothing more arrives, and then reports which blocks are still granted.
type recovery struct {
	qps    []qpRecovery
	closes int // DoCloseQPs that are due
	states int // QPStates that are to be sent, or are being sent
}

type qpRecovery struct {
	asked  bool // the peer has sent a QPDown
	close  bool // DoCloseQP is due
	closed bool // and has been done: QPState is to be sent
	cursor int  // next block of the QPState
	sent   bool // all parts
}

// QPFailed says that a data QP of this side has failed. Its WRITEs that have not completed will not
// complete.
func (m *Machine) QPFailed(qp int, cause error) {
	s := &m.src
	if m.err != nil || s.qps[qp].dead {
		return
	}
	q := &s.qps[qp]
	q.dead, q.down, q.waiting = true, true, true
	s.alive--
	m.Counters.QPsFailed++
	m.changed |= FreeChanged // its blocks do not count for SetBacklog
	for i := range s.blocks {
		if b := &s.blocks[i]; b.state == Waiting && b.qp == qp {
			b.lost = true
		}
	}
	if s.alive == 0 {
		err := fmt.Errorf("%w: all data QPs have failed", ErrLost)
		if cause != nil {
			err = fmt.Errorf("%w: all data QPs have failed: %w", ErrLost, cause)
		}
		m.reject(err)
	}
}

func (m *Machine) handleQPDown(c *control) {
	qp := c.u32(0)
	if qp >= uint32(len(m.rec.qps)) || m.rec.qps[qp].asked {
		m.violated("data QP %d has failed, of %d, or has failed before", qp, len(m.rec.qps))
		return
	}
	m.rec.qps[qp].asked, m.rec.qps[qp].close = true, true
	m.rec.closes++
}

// QPClosed says that a DoCloseQP has been done.
func (m *Machine) QPClosed(qp int) {
	m.rec.qps[qp].closed = true
	m.rec.states++
}

// pollLocal makes actions that send nothing.
func (m *Machine) pollLocal(a *Action) bool {
	if m.snk.reads.len() > 0 {
		id := m.snk.reads.pop()
		*a = Action{Kind: DoRead, Block: index(id), Imm: id}
		return true
	}
	for i := 0; m.rec.closes > 0; i++ {
		if m.rec.qps[i].close {
			m.rec.qps[i].close = false
			m.rec.closes--
			*a = Action{Kind: DoCloseQP, QP: i}
			return true
		}
	}
	return false
}

// buildRecovery builds the next message about failed QPs.
func (m *Machine) buildRecovery() bool {
	if m.src.alive == len(m.src.qps) && m.rec.states == 0 {
		return false
	}
	for i := range m.src.qps {
		if q := &m.src.qps[i]; q.down {
			q.down = false
			m.begin(TypeQPDown).u32(uint32(i))
			return true
		}
	}
	for i := range m.rec.qps {
		if r := &m.rec.qps[i]; r.closed && !r.sent {
			m.buildState(i, r)
			return true
		}
	}
	return false
}

// buildState builds the next part of a QPState.
func (m *Machine) buildState(qp int, r *qpRecovery) {
	s := &m.snk
	w := m.begin(TypeQPState)
	w.u32(uint32(qp))
	at := w.n
	w.u32(0)
	for ; r.cursor < len(s.blocks) && w.space() >= idLen; r.cursor++ {
		if b := &s.blocks[r.cursor]; b.state == Granted && !b.reading {
			w.u32(s.id(r.cursor))
		}
	}
	if r.cursor < len(s.blocks) {
		return
	}
	r.sent = true
	m.rec.states--
	end := w.n
	w.n = at
	w.u32(1)
	w.n = end
}

func (m *Machine) handleQPState(c *control) {
	s := &m.src
	qp, last := c.u32(0), c.u32(4)
	if qp >= uint32(len(s.qps)) || !s.qps[qp].waiting || s.qps[qp].down || last > 1 {
		m.violated("%v of data QP %d, which has not failed", c.typ, qp)
		return
	}
	lost := map[uint32]int{}
	for i := range s.blocks {
		if b := &s.blocks[i]; b.lost && b.qp == int(qp) {
			lost[b.g.id] = i
		}
	}
	for at := stateBody; at < len(c.body); at += idLen {
		if i, ok := lost[c.u32(at)]; ok {
			s.blocks[i].kept = true
		}
	}
	if last == 0 {
		return
	}
	s.qps[qp].waiting = false
	for i := len(s.blocks) - 1; i >= 0; i-- {
		b := &s.blocks[i]
		if !b.lost || b.qp != int(qp) {
			continue
		}
		if b.lost = false; !b.kept {
			m.completed(i)
			continue
		}
		m.unpost(b)
		b.kept, b.state = false, Loaded
		s.prepend(i)
		m.Counters.BlocksAgain++
	}
	s.stuck = false
}
