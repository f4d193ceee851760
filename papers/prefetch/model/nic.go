package model

import (
	"slices"

	"github.com/gorxe/gorxe/qp/sched"
)

// The stages of the pipeline: one for the lookup of each kind of resource, one that reads the
// payload, and the link.
const (
	payload = int(Kinds) + iota
	onLink
	stages
)

// job is the turn of a QP in the pipeline.
type job struct {
	qp   uint32
	n    int  // messages
	done span // earliest time at which it may leave its stage
}

// nic is the requester. Its user pushes QPs and learns of sent chunks through sent.
type nic struct {
	*clock
	p      *Params
	queue  *sched.Queue[uint32]
	caches [Kinds]*cache
	mrs    uint32 // QP q's memory is in MR q mod mrs
	pcie   wire   // host to NIC: the data of reads
	line   wire
	stage  [stages][]job // in order
	slots  [stages]int
	units  int      // number of turns that look up independently; 0 means a pipeline
	ahead  int      // turns for which the WQEs of a QP are read in advance
	turn   int      // messages per turn
	taken  []uint32 // turns whose WQEs have been taken, by QP

	pick func() (uint32, bool) // returns the next QP: queue.Pop, except in random order
	more func(qp uint32)       // called when a turn has taken its WQEs; may push the QP again
	sent func(j *job)          // called when a chunk has been sent
	wake func()                // advance as a value, to allocate it once

	hits, misses [Kinds]int64
}

func newNIC(p *Params, c *clock, qps, mrs, window int) (*nic, error) {
	q, err := sched.New[uint32](qps, window)
	if err != nil {
		return nil, err
	}
	n := &nic{clock: c, p: p, queue: q, mrs: uint32(mrs), turn: p.Turn(),
		taken: make([]uint32, qps)}
	n.pcie.rate, n.line.rate = p.PCIeRate, p.LinkRate
	for k := range Kinds {
		keys := qps
		if k == MPT || k == MTT {
			keys = mrs
		}
		n.caches[k] = newCache(p.Cache[k], keys)
		n.slots[k] = p.Slots
	}
	n.slots[payload] = max(1, p.Reads/n.turn)
	n.slots[onLink] = 1
	n.pick = q.Pop
	n.more = func(uint32) {}
	n.sent = func(*job) {}
	n.wake = n.advance
	return n, nil
}

// read requests bytes from the host and returns when they arrive.
func (n *nic) read(bytes int) span { return n.pcie.send(n.now+spanOf(n.p.PCIeRTT), bytes) }

// key returns which resource of a kind a QP needs.
func (n *nic) key(k Kind, qp uint32) uint32 {
	if k == MPT || k == MTT {
		return qp % n.mrs
	}
	return qp
}

// fetch looks up a resource and requests it from the host if it is neither present nor requested.
// It returns when it is present, and whether the lookup was a hit.
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

// lookup is done when j enters the stage of kind k: j stays until the resource is present.
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

// takeWQEs uses up the WQEs of a turn and reads further ones in advance.
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

// ready returns the index of a job that may leave stage s now, or none. Jobs overtake each other in
// units, but not in a pipeline.
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

// leave removes job i from stage s.
func (n *nic) leave(s, i int) job {
	j := n.stage[s][i]
	n.stage[s] = slices.Delete(n.stage[s], i, i+1)
	return j
}

// accepts reports whether stage s has a free slot. A unit is busy from the first lookup to the
// last.
func (n *nic) accepts(s int) bool {
	if n.units == 0 || s >= payload {
		return len(n.stage[s]) < n.slots[s]
	}
	busy := 0
	for k := range n.stage[:payload] {
		busy += len(n.stage[k])
	}
	return s > 0 || busy < n.units
}

// advance moves jobs that can move, beginning with the last stage, and starts new turns.
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

// push puts a QP into the scheduling queue, and with that into the prefetch queue.
func (n *nic) push(qp uint32) {
	n.queue.Push(qp)
	n.prefetch()
}

// prefetch starts the chains of the QPs inside the window.
func (n *nic) prefetch() {
	for qp, ok := n.queue.Prefetch(); ok; qp, ok = n.queue.Prefetch() {
		n.chain(QPC, qp, MTT, n.taken[qp])
	}
}

// chain fetches the resources of qp from kind k to last, each when the previous one, which says
// where it is, has arrived. The chain ends if its turn has already taken the WQEs: the WQEs of
// the next turn may not be written yet.
func (n *nic) chain(k Kind, qp uint32, last Kind, turn uint32) {
	if k == WQE && n.taken[qp] != turn {
		return
	}
	ready, _ := n.fetch(k, qp, n.turn)
	if k < last {
		n.at(max(ready, n.now+spanOf(n.p.Hit)), func() { n.chain(k+1, qp, last, turn) })
	}
}
