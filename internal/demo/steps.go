package demo

import (
	"math"

	"github.com/gorxe/gorxe/roce"
)

// step is one operation of the demo.
type step struct {
	name string
	qp   int // which of the nodes' QPs: the transport
	op   roce.Op
	recv bool // it takes a receive at B
	imm  bool // it carries immediate data
	run  func(t *trial, count, batch int) error
}

// The demo's table of operations: all that RC, UC and UD have.
var steps = []step{
	{name: "SEND", qp: rc, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "SEND imm", qp: rc, op: roce.OpSendImm, recv: true, imm: true, run: (*trial).messages},
	{name: "SEND inv", qp: rc, op: roce.OpSendInv, recv: true, run: (*trial).messages},
	{name: "WRITE", qp: rc, op: roce.OpWrite, run: (*trial).messages},
	{name: "WRITE imm", qp: rc, op: roce.OpWriteImm, recv: true, imm: true, run: (*trial).messages},
	{name: "READ", qp: rc, op: roce.OpRead, run: (*trial).messages},
	{name: "CMP_SWAP", qp: rc, op: roce.OpCmpSwap, run: (*trial).atomics},
	{name: "FETCH_ADD", qp: rc, op: roce.OpFetchAdd, run: (*trial).atomics},
	{name: "UC SEND", qp: uc, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "UC SEND imm", qp: uc, op: roce.OpSendImm, recv: true, imm: true, run: (*trial).messages},
	{name: "UC WRITE", qp: uc, op: roce.OpWrite, run: (*trial).messages},
	{name: "UC WRITE imm", qp: uc, op: roce.OpWriteImm, recv: true, imm: true, run: (*trial).messages},
	{name: "UD SEND", qp: ud, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "UD SEND imm", qp: ud, op: roce.OpSendImm, recv: true, imm: true, run: (*trial).messages},
}

const (
	small    = 64 // bytes of the small messages
	wordSize = 8  // of an atomic, and of the number at the front of a message

	singles     = 200  // messages of a row that are timed one by one
	smallBatch  = 2000 // messages of a row that are sent in batches
	largeBatch  = 256
	muchLoss    = 0.02
	invalidates = 200 // SEND inv: each takes a memory region of its own
)

// atomic tells the operations on 8 bytes.
func (s *step) atomic() bool { return s.op == roce.OpCmpSwap || s.op == roce.OpFetchAdd }

// reliable tells whether lost packets are sent again.
func (s *step) reliable() bool { return s.qp == rc }

// rows are the sizes that the step is timed with.
func (s *step) rows(set *settings) []int {
	switch {
	case s.atomic():
		return []int{wordSize}
	case s.qp == ud:
		return []int{small, int(set.mtu)} // a datagram is one packet
	case s.qp == uc:
		return []int{small, set.unreliableSize()}
	}
	return []int{small, maxMessage}
}

// unreliableSize is the size of the large messages that nobody sends again: the more packets are lost, the fewer
// a message may have if one in four is to arrive whole.
func (set *settings) unreliableSize() int {
	size := maxMessage
	for size > int(set.mtu) && math.Pow(1-set.loss, float64(size)/float64(set.mtu)) < 0.25 {
		size /= 2
	}
	return size
}

// fewer scales the number of messages down where each waits for several losses.
func (set *settings) fewer(n int) int {
	if set.loss > muchLoss {
		return n / 4
	}
	return n
}

// edges are the sizes around packet boundaries, which are checked but not timed. Every message of
// an unreliable transport carries its number, hence the least size.
func (s *step) edges(mtu roce.MTU) []int {
	m := int(mtu)
	switch {
	case s.atomic():
		return nil
	case s.qp == ud:
		return []int{wordSize, wordSize + 1, m - 1}
	case !s.reliable():
		return []int{wordSize, wordSize + 1, m - 1, m, m + 1, 2 * m, 3*m + 5}
	}
	return []int{0, 1, 2, 3, 7, m - 1, m, m + 1, 2*m - 1, 2 * m, 3*m + 5}
}

// depth is how many messages of a size may be outstanding.
func (s *step) depth(size int, mtu roce.MTU) int {
	if s.reliable() {
		return depth
	}
	packets := (size + int(mtu) - 1) / int(mtu)
	return min(depth, max(2, maxUnreliable/packets))
}

// batch is how many messages of a size are sent in batches, for the rate.
func (s *step) batch(size int) int {
	switch {
	case s.op == roce.OpSendInv:
		return invalidates
	case size >= maxMessage:
		return largeBatch
	}
	return smallBatch
}
