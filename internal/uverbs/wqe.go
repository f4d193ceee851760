package uverbs

import (
	"encoding/binary"
	"errors"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/qp"
)

// Layout of a send work request (struct rxe_send_wqe).
const (
	sqID      = 0
	sqOpcode  = 12
	sqFlags   = 16
	sqExtra   = 20 // immediate (big endian), or the key to invalidate
	sqAddr    = 24 // WRITE, READ, atomics, FLUSH
	sqRKey    = 32 // WRITE, READ
	sqCompare = 32 // atomics
	sqSwap    = 40
	sqAtomKey = 48
	sqFlKey   = 36
	sqFlType  = 40
	sqFlLevel = 41
	sqMWLen   = 32 // BIND_MW, as are the next four
	sqMWLKey  = 40
	sqMWOld   = 44 // present key of the window
	sqMWNew   = 48
	sqMWFlags = 52
	sqQPN     = 24 // UD
	sqQKey    = 28
	sqAH      = 36
	sqDataLen = 184
	sqNumSGE  = 196
	sqElement = 208 // SGEs or inline data follow
)

// Flags of a send work request (ibv_send_flags).
const (
	sendFence = 1 << iota
	sendSignaled
	sendSolicited
	sendInline
)

// sendOps maps opcodes (ibv_wr_opcode) to operations.
var sendOps = map[uint32]qp.Op{0: qp.OpWrite, 1: qp.OpWriteImm, 2: qp.OpSend, 3: qp.OpSendImm,
	4: qp.OpRead, 5: qp.OpCmpSwap, 6: qp.OpFetchAdd, 7: qp.OpLocalInv, 8: qp.OpBindMW,
	9: qp.OpSendInv, 14: qp.OpFlush, 15: qp.OpAtomicWrite}

// decodeSend translates the work request in slot b of the send queue to d.wr, in one pass: the
// program may change the slot at any time. It returns false if the request is not valid.
func (q *queuePair) decodeSend(b []byte) bool {
	d := q.c.dev
	w := d.wqe[:copy(d.wqe[:], b)]
	le := binary.LittleEndian
	wr := &d.wr[0]
	*wr = qp.SendWR{ID: le.Uint64(w[sqID:])}
	flags := le.Uint32(w[sqFlags:])
	if flags&sendSignaled != 0 {
		wr.Flags |= qp.Signaled
	}
	if flags&sendFence != 0 {
		wr.Flags |= qp.Fence
	}
	if flags&sendSolicited != 0 {
		wr.Flags |= qp.Solicited
	}
	op, ok := sendOps[le.Uint32(w[sqOpcode:])]
	if !ok {
		return false
	}
	wr.Op = op
	q.decodeTarget(w, wr)
	switch op {
	case qp.OpAtomicWrite: // the value is in the element
		wr.Inline = w[sqElement : sqElement+8]
		return true
	case qp.OpFlush, qp.OpLocalInv:
		return true
	case qp.OpBindMW:
		return d.decodeBind(w, wr)
	}
	if flags&sendInline != 0 {
		n := le.Uint32(w[sqDataLen:])
		if n > q.maxInline || int(n) > len(w)-sqElement {
			return false
		}
		wr.Inline = w[sqElement : sqElement+int(n)]
		return true
	}
	n := le.Uint32(w[sqNumSGE:])
	if n > q.maxSendSGE || int(n)*sgeSize > len(w)-sqElement {
		return false
	}
	for i := range int(n) {
		d.sges[i] = readSGE(w[sqElement+i*sgeSize:])
	}
	wr.SGEs = d.sges[:n]
	return true
}

// decodeTarget sets the fields that depend on the operation.
func (q *queuePair) decodeTarget(w []byte, wr *qp.SendWR) {
	le := binary.LittleEndian
	wr.Imm = binary.BigEndian.Uint32(w[sqExtra:])
	wr.InvKey = bth.RKey(le.Uint32(w[sqExtra:]))
	switch wr.Op {
	case qp.OpWrite, qp.OpWriteImm, qp.OpRead, qp.OpAtomicWrite:
		wr.RemoteAddr, wr.RKey = le.Uint64(w[sqAddr:]), bth.RKey(le.Uint32(w[sqRKey:]))
	case qp.OpCmpSwap:
		wr.RemoteAddr, wr.RKey = le.Uint64(w[sqAddr:]), bth.RKey(le.Uint32(w[sqAtomKey:]))
		wr.Compare, wr.SwapAdd = le.Uint64(w[sqCompare:]), le.Uint64(w[sqSwap:])
	case qp.OpFetchAdd:
		wr.RemoteAddr, wr.RKey = le.Uint64(w[sqAddr:]), bth.RKey(le.Uint32(w[sqAtomKey:]))
		wr.SwapAdd = le.Uint64(w[sqCompare:])
	case qp.OpFlush:
		wr.RemoteAddr, wr.RKey = le.Uint64(w[sqAddr:]), bth.RKey(le.Uint32(w[sqFlKey:]))
		wr.Length = le.Uint32(w[sqDataLen:])
		wr.Level, wr.Placement = qp.Level(w[sqFlLevel]), qp.Placement(w[sqFlType])
	}
	if q.inner.Type() != qp.UD {
		return
	}
	wr.RemoteQPN = bth.QPN(le.Uint32(w[sqQPN:]) & 0xffffff)
	wr.RemoteQKey = bth.QKey(le.Uint32(w[sqQKey:]))
	if wr.RemoteQKey&(1<<31) != 0 { // IBA 10.2.5: the QP's own Q_Key
		wr.RemoteQKey = q.inner.Query().QKey
	}
	if a := q.c.dev.ahs[le.Uint32(w[sqAH:])]; a != nil && a.pd == q.pd {
		wr.AH = inside.AH(a.ah)
	}
}

// Sends implements qp.Source: it posts what the program has put in the ring. In one step it takes
// at most what the ring holds, so that a program that fills it forever does not stop the loop.
func (q *queuePair) Sends() bool {
	d := q.c.dev
	q.newTurn()
	if !q.hot {
		q.hot = true
		d.hot = append(d.hot, q)
	}
	posted := false
	for q.inner.SQFree() > 0 && q.pulled < q.sq.mask && q.sq.waiting() > 0 {
		if q.inner.State() < qp.RTS {
			break
		}
		q.pulled++
		err := qp.ErrInvalidWR
		if q.decodeSend(q.sq.slot(q.sq.index)) {
			_, err = q.inner.Post(d.wr[:])
		}
		q.sq.index = (q.sq.index + 1) & q.sq.mask
		if err != nil {
			q.refuse(err)
			continue
		}
		posted = true
	}
	d.wr[0] = qp.SendWR{}
	if posted {
		d.loaded = loaded{}
	}
	return posted
}

// newTurn resets the limits at the start of a step.
func (q *queuePair) newTurn() {
	if t := q.c.dev.turn; q.turn != t {
		q.turn, q.pulled, q.flushed = t, 0, 0
	}
}

// refuse completes the work request in Device.wr, which the engine cannot execute, and ends the QP.
func (q *queuePair) refuse(err error) {
	wc := qp.WC{ID: q.c.dev.wr[0].ID, Status: qp.LocQPOpErr, QPN: q.inner.QPN()}
	switch {
	case q.inner.State() == qp.Err:
		wc.Status = qp.WRFlushErr
	case errors.Is(err, qp.ErrWRLength):
		wc.Status = qp.LocLenErr
	}
	q.sendCQ.drain()
	q.sendCQ.publish(&wc)
	if q.inner.State() != qp.Err {
		_ = q.inner.Modify(0, &qp.Attr{State: qp.Err}, qp.AttrState)
	}
	q.sendCQ.checkFull()
}

// settle publishes which send work requests have completed. It returns false if there are no more.
func (q *queuePair) settle() bool {
	if q.gone {
		return false
	}
	left := uint32(q.inner.SQLen())
	q.sq.setConsumer(q.sq.index - left)
	if q.sq.waiting() > 0 && q.inner.SQFree() > 0 && q.inner.State() >= qp.RTS {
		q.inner.RingDoorbell()
		return true
	}
	q.hot = left > 0
	return q.hot
}

// Recv implements qp.Source. It is limited like Sends.
func (q *queuePair) Recv(wr *qp.RecvWR) bool {
	if q.rq == nil || q.gone {
		return false
	}
	if q.inner.State() == qp.Err {
		q.newTurn()
		if q.flushed++; q.flushed > q.rq.mask {
			return false
		}
	}
	return takeRecv(q.rq, wr)
}
