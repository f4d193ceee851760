package qp

import (
	"fmt"

	"github.com/gorxe/gorxe/mr"
)

// refuseState returns the error for PostSend in state st.
func refuseState(st State) error {
	return fmt.Errorf("%w: PostSend in %s; move the QP to RTS first", ErrQPState, st)
}

// wrFault is the reason for rejecting a work request.
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

// refuseWR returns the error for fault f of a message of n bytes.
func (q *QP) refuseWR(f wrFault, wr *SendWR, n uint64) error {
	switch f {
	case notOfType:
		return fmt.Errorf("%w: %s is not an operation of %s QPs", ErrInvalidWR, wr.Op, q.typ)
	case wrongInline:
		return fmt.Errorf("%w: %d bytes inline for %s with %d SGEs; the QP's MaxInline is %d", ErrInvalidWR, len(wr.Inline), wr.Op, len(wr.SGEs), q.sq.maxInline)
	case manySGEs:
		return fmt.Errorf("%w: %d SGEs, the QP's MaxSendSGE is %d", ErrInvalidWR, len(wr.SGEs), q.sq.maxSGE)
	case wrongLength:
		return fmt.Errorf("%w: %s needs %d bytes of local memory, got %d", ErrInvalidWR, wr.Op, opRules[wr.Op].fixed, n)
	case tooLong:
		return fmt.Errorf("%w: message of %d bytes, the limit is 2^31", ErrInvalidWR, n)
	case noAH:
		return fmt.Errorf("%w: a UD work request needs an address handle (AH); create one with Device.CreateAH", ErrInvalidWR)
	}
	return fmt.Errorf("%w: UD message of %d bytes, the path MTU is %d", ErrInvalidWR, n, q.mtu.Load())
}

// refuseSGE returns the error for SGE i of a send or receive that failed its key check.
func refuseSGE(i int, g *SGE, v mr.Verdict) error {
	return fmt.Errorf("%w: SGE %d, %d bytes at %#x: %s", ErrInvalidKey, i, g.Length, g.Addr, v)
}
