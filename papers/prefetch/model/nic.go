package model

import (
	"slices"

	"github.com/gorxe/gorxe/qp/sched"
)

// The stages of the pipeline: one looks up each kind of resource, then the payload is read, then the chunk is on the link.
const (
	payload = int(Kinds) + iota
	onLink
	stages
)

// job is a turn of a QP in the pipeline.
type job struct {
	qp   uint32
	n    int  // messages
	done span // when it may leave its stage
}

// nic is the requester. Its owner pushes QPs and is told what was sent.
type nic struct {
	*clock
	p      *Params
	queue  *sched.Queue[uint32]
	caches [Kinds]*cache
	mrs    uint32 // QP q's memory is in MR q mod mrs
	pcie   wire   // host to NIC: what reads bring
	line   wire
	stage  [stages][]job // in order: the first leaves first
	room   [stages]int
	units  int      // 0: a pipeline; else so many turns look up at once, each at its own pace
	ahead  int      // turns' worth of WQEs that are read ahead for a QP
	turn   int      // messages
	taken  []uint32 // turns whose WQEs were taken, by QP

	pick func() (uint32, bool) // the QP to serve next: queue.Pop, but in a NIC without a scheduling queue
	more func(qp uint32)       // the WQEs of a turn are taken: the place to push the QP again
	sent func(j *job)
	wake func() // advance, as a value made once

	hits, misses [Kinds]int64
}

func newNIC(p *Params, c *clock, qps, mrs, window int) (*nic, error) {
	q, err := sched.New[uint32](qps, window)
	if err != nil {
		return nil, err
	}
	n := &nic{clock: c, p: p, queue: q, mrs: uint32(mrs), turn: p.Turn(), taken: make([]uint32, qps)}
	n.pcie.rate, n.line.rate = p.PCIeRate, p.LinkRate
	for k := range Kinds {
		keys := qps
		if k == MPT || k == MTT {
			keys = mrs
		}
		n.caches[k] = newCache(p.Cache[k], keys)
		n.room[k] = p.Slots
	}
	n.room[payload] = max(1, p.Reads/n.turn)
	n.room[onLink] = 1
	n.pick = q.Pop
	n.more = func(uint32) {}
	n.sent = func(*job) {}
	n.wake = n.advance
	return n, nil
}

// read asks the host for bytes and says when they will be here.
func (n *nic) read(bytes int) span { return n.pcie.send(n.now+spanOf(n.p.PCIeRTT), bytes) }

// key is what a QP needs of a kind.
func (n *nic) key(k Kind, qp uint32) uint32 {
	if k == MPT || k == MTT {
		return qp % n.mrs
	}
	return qp
}

// fetch looks a resource up and asks the host for it if it is not there or under way already. It says when it will be there.
func (n *nic) fetch(k Kind, qp uint32, messages int) (ready span, hit bool) {
	c, key := n.caches[k], n.key(k, qp)
	it := c.find(key)
	if it != nil && (k != WQE || len(it.batches) > 0) {
		if k == WQE {
			return it.batches[0], true
		}
		return it.ready, true
	}
	if it == nil {
		it = c.insert(key)
	}
	if k == WQE {
		it.batches = append(it.batches, n.read(messages*n.p.Size[k]))
		return it.batches[0], false
	}
	it.ready = n.read(n.p.Size[k])
	return it.ready, false
}

// lookup is what the stage of kind k does when j enters it: it waits for what is missing.
func (n *nic) lookup(k Kind, j *job) {
	ready, hit := n.fetch(k, j.qp, j.n)
	if hit {
		n.hits[k]++
	} else {
		n.misses[k]++
	}
	j.done = max(n.now+spanOf(n.p.Hit), ready)
	if k == WQE {
		n.takeWQEs(j)
	}
}

// takeWQEs uses up a turn's WQEs, and reads ahead.
func (n *nic) takeWQEs(j *job) {
	n.taken[j.qp]++
	it := &n.caches[WQE].items[j.qp]
	copy(it.batches, it.batches[1:])
	it.batches = it.batches[:len(it.batches)-1]
	for len(it.batches) < n.ahead {
		it.batches = append(it.batches, n.read(n.turn*n.p.Size[WQE]))
	}
}

// enter puts j into stage s.
func (n *nic) enter(s int, j job) {
	switch s {
	case payload:
		j.done = n.read(j.n * n.p.Message)
	case onLink:
		j.done = n.line.send(n.now, j.n*(n.p.Message+n.p.Overhead))
	default:
		n.lookup(Kind(s), &j)
	}
	n.stage[s] = append(n.stage[s], j)
	n.at(j.done, n.wake)
}

// ready is the job that may leave stage s now; none: there is none. In a pipeline nothing overtakes; units do.
func (n *nic) ready(s int) int {
	for i := range n.stage[s] {
		if n.stage[s][i].done <= n.now {
			return i
		}
		if n.units == 0 || s >= payload {
			break
		}
	}
	return none
}

// leave takes job i out of stage s.
func (n *nic) leave(s, i int) job {
	j := n.stage[s][i]
	n.stage[s] = slices.Delete(n.stage[s], i, i+1)
	return j
}

// accepts tells whether stage s has room: units are taken by the first lookup and free after the last.
func (n *nic) accepts(s int) bool {
	if n.units == 0 || s >= payload {
		return len(n.stage[s]) < n.room[s]
	}
	busy := 0
	for k := range n.stage[:payload] {
		busy += len(n.stage[k])
	}
	return s > 0 || busy < n.units
}

// advance moves what can move, the last stage first, and takes in new turns.
func (n *nic) advance() {
	for moved := true; moved; {
		moved = false
		for s := stages - 1; s >= 0; s-- {
			i := n.ready(s)
			if i == none {
				continue
			}
			if s == onLink {
				j := n.leave(s, i)
				n.sent(&j)
			} else if n.accepts(s + 1) {
				j := n.leave(s, i)
				n.enter(s+1, j)
				if s == int(WQE) {
					n.more(j.qp)
				}
			} else {
				continue
			}
			moved = true
		}
		if n.accepts(0) {
			if qp, ok := n.pick(); ok {
				n.enter(0, job{qp: qp, n: n.turn})
				moved = true
			}
		}
		n.prefetch()
	}
}

// push puts a QP into the scheduling queue, and thereby into the prefetch queue.
func (n *nic) push(qp uint32) {
	n.queue.Push(qp)
	n.prefetch()
}

// prefetch starts the chains of the QPs that the window has reached.
func (n *nic) prefetch() {
	for qp, ok := n.queue.Prefetch(); ok; qp, ok = n.queue.Prefetch() {
		n.chain(QPC, qp, MTT, n.taken[qp])
	}
}

// chain fetches what qp needs from kind k on to last, each when the one before it has told where it is. A chain that the turn
// it is for has overtaken ends: other WQEs may not be written yet.
func (n *nic) chain(k Kind, qp uint32, last Kind, turn uint32) {
	if k == WQE && n.taken[qp] != turn {
		return
	}
	ready, _ := n.fetch(k, qp, n.turn)
	if k < last {
		n.at(max(ready, n.now+spanOf(n.p.Hit)), func() { n.chain(k+1, qp, last, turn) })
	}
}
