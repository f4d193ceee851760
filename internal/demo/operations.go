package demo

import (
	"math"

	"github.com/gorxe/gorxe/roce"
)

// operation is one row of the table of operations.
type operation struct {
	name string
	qp   int // index of the QP: the transport
	op   roce.Op
	recv bool // consumes a receive at B
	imm  bool // carries immediate data
	run  func(t *trial, count, batch int) error
}

// operations are all operations of RC, UC and UD without the later extensions FLUSH and ATOMIC
// WRITE.
var operations = []operation{
	{name: "SEND", qp: rc, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "SEND imm", qp: rc, op: roce.OpSendImm, recv: true, imm: true, run: (*trial).messages},
	{name: "SEND inv", qp: rc, op: roce.OpSendInv, recv: true, run: (*trial).messages},
	{name: "WRITE", qp: rc, op: roce.OpWrite, run: (*trial).messages},
	{name: "WRITE imm", qp: rc, op: roce.OpWriteImm, recv: true, imm: true, run: (*trial).messages},
	{name: "READ", qp: rc, op: roce.OpRead, run: (*trial).messages},
	{name: "CMP_SWAP", qp: rc, op: roce.OpCmpSwap, run: (*trial).atomics},
	{name: "FETCH_ADD", qp: rc, op: roce.OpFetchAdd, run: (*trial).atomics},
	{name: "UC SEND", qp: uc, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "UC SEND imm", qp: uc, op: roce.OpSendImm, recv: true, imm: true,
		run: (*trial).messages},
	{name: "UC WRITE", qp: uc, op: roce.OpWrite, run: (*trial).messages},
	{name: "UC WRITE imm", qp: uc, op: roce.OpWriteImm, recv: true, imm: true,
		run: (*trial).messages},
	{name: "UD SEND", qp: ud, op: roce.OpSend, recv: true, run: (*trial).messages},
	{name: "UD SEND imm", qp: ud, op: roce.OpSendImm, recv: true, imm: true,
		run: (*trial).messages},
}

const (
	small    = 64 // bytes of small messages
	wordSize = 8  // bytes of an atomic, and of the sequence number in a message

	singles     = 200  // messages for the latency
	smallBatch  = 2000 // messages for the rate
	largeBatch  = 256
	highLoss    = 0.02
	invalidates = 200 // messages for the rate of SEND inv, which needs a region for each
)

// atomic reports whether the operation is an atomic.
func (o *operation) atomic() bool { return o.op == roce.OpCmpSwap || o.op == roce.OpFetchAdd }

// reliable reports whether lost packets are retransmitted.
func (o *operation) reliable() bool { return o.qp == rc }

// sizes returns the message sizes to measure.
func (o *operation) sizes(c *Config) []int {
	switch {
	case o.atomic():
		return []int{wordSize}
	case o.qp == ud:
		return []int{small, int(c.MTU)} // a datagram is one packet
	case o.qp == uc:
		return []int{small, c.unreliableSize()}
	}
	return []int{small, maxMessage}
}

// unreliableSize returns the size of large messages that are not retransmitted. It is so small that
// at least one in four arrives complete.
func (c *Config) unreliableSize() int {
	size := maxMessage
	for size > int(c.MTU) && math.Pow(1-c.Loss, float64(size)/float64(c.MTU)) < 0.25 {
		size /= 2
	}
	return size
}

// fewer reduces the number of messages if many need several retransmissions.
func (c *Config) fewer(n int) int {
	if c.Loss > highLoss {
		return n / 4
	}
	return n
}

// edges returns the message sizes around packet boundaries, to check but not to measure. Unreliable
// messages have at least the size of their sequence number.
func (o *operation) edges(mtu roce.MTU) []int {
	m := int(mtu)
	switch {
	case o.atomic():
		return nil
	case o.qp == ud:
		return []int{wordSize, wordSize + 1, m - 1}
	case !o.reliable():
		return []int{wordSize, wordSize + 1, m - 1, m, m + 1, 2 * m, 3*m + 5}
	}
	return []int{0, 1, 2, 3, 7, m - 1, m, m + 1, 2*m - 1, 2 * m, 3*m + 5}
}

// depth returns the number of messages of a size that may be in flight.
func (o *operation) depth(size int, mtu roce.MTU) int {
	if o.reliable() {
		return depth
	}
	packets := (size + int(mtu) - 1) / int(mtu)
	return min(depth, max(2, maxUnreliable/packets))
}

// batch returns the number of messages of a size for the rate.
func (o *operation) batch(size int) int {
	switch {
	case o.op == roce.OpSendInv:
		return invalidates
	case size >= maxMessage:
		return largeBatch
	}
	return smallBatch
}
