package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/mr"
)

// What posting refuses of work requests that send data. These functions stay calls: inlined, the words would stand in the midst of the code that
// every post runs through, and widen its stack.

//go:noinline
func refuseState(st State) error {
	return fmt.Errorf("%w: PostSend in %s, it needs RTS", ErrQPState, st)
}

// wrFault is what can be wrong with a work request.
type wrFault uint8

const (
	notOfType wrFault = iota
	wrongInline
	manySGEs
	wrongLength
	tooLong
	noAH
	longDatagram
)

// refuseWR says what is wrong, n being the message's length.
//
//go:noinline
func (q *QP) refuseWR(f wrFault, wr *SendWR, n uint64) error {
	switch f {
	case notOfType:
		return fmt.Errorf("%w: %s is not an operation of %s QPs", ErrInvalidWR, wr.Op, q.typ)
	case wrongInline:
		return fmt.Errorf("%w: %d bytes inline for %s with %d SGEs; the QP's MaxInline is %d", ErrInvalidWR, len(wr.Inline), wr.Op, len(wr.SGEs), q.sq.maxInline)
	case manySGEs:
		return fmt.Errorf("%w: %d SGEs, the QP's MaxSendSGE is %d", ErrInvalidWR, len(wr.SGEs), q.sq.maxSGE)
	case wrongLength:
		return fmt.Errorf("%w: %s needs %d bytes of local memory, not %d", ErrInvalidWR, wr.Op, opRules[wr.Op].fixed, n)
	case tooLong:
		return fmt.Errorf("%w: message of %d bytes, the limit is 2^31", ErrInvalidWR, n)
	case noAH:
		return fmt.Errorf("%w: a UD work request needs an address handle (AH) with headers", ErrInvalidWR)
	}
	return fmt.Errorf("%w: UD message of %d bytes, the path MTU is %d", ErrInvalidWR, n, q.mtu.Load())
}

// refuseSGE says what a key check has against SGE i of a send or a receive.
//
//go:noinline
func refuseSGE(i int, g *SGE, v mr.Verdict) error {
	return fmt.Errorf("%w: SGE %d, %d bytes at %#x: %s", ErrInvalidKey, i, g.Length, g.Addr, v)
}
