package loop

import (
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/qp"
)

// transmit lets the engine build a batch of packets in the port's buffers and sends them. It keeps
// buffers that stay empty for the next step. It returns the number of packets.
func (l *Loop) transmit(now qp.Time) int {
	if l.eng.Bounded() && l.bound.on {
		return l.transmitBounded(now)
	}
	l.stalled = false
	l.joiner.end = 0
	// n packets are in the first used buffers.
	n, used, next := 0, 0, 0
	for n < txBatch && l.eng.HasTransmit(now) && l.allocate(used) {
		if next > 0 {
			if r, k := l.buildRun(now, used, min(next, txBatch-n)); r != nil {
				n, used, next = n+r.Packets, used+k, 0
				if r.Ended > txBatch-n {
					break
				}
				continue
			}
		}
		tx := l.build(now, used)
		if tx == nil {
			break
		}
		n, used, next = n+1, used+1, tx.Next
		if tx.Ended > txBatch-n {
			break // a message of that length does not fit in the batch
		}
	}
	if n > 0 {
		l.flush(used, n)
	}
	return n
}

// allocate reports whether there is a free transmit buffer besides the first n, which are in use.
// It gets more from the port if there is none.
func (l *Loop) allocate(n int) bool {
	if n < l.txn {
		return true
	}
	copy(l.tx[:], l.txBuffers())
	l.txAt = 0
	l.txn += l.port.Alloc(l.tx[l.txn:])
	if l.txn == 0 {
		l.stalled = true
	}
	return n < l.txn
}

// txBuffers returns the free transmit buffers.
func (l *Loop) txBuffers() []driver.Buf { return l.tx[l.txAt : l.txAt+l.txn] }

// freeBuffers returns the free transmit buffers to the port.
func (l *Loop) freeBuffers() {
	if l.txn > 0 {
		l.port.Free(l.txBuffers())
	}
	l.txAt, l.txn = 0, 0
}

// build builds the next packet in free buffer i, and returns nil if there was none.
func (l *Loop) build(now qp.Time, i int) *qp.Transmit {
	buf := &l.tx[l.txAt+i]
	tx := l.eng.PollTransmit(now, buf.B[:len(buf.B)-bth.ICRCLen])
	if tx == nil {
		return nil
	}
	buf.B = buf.B[:tx.Len+bth.ICRCLen]
	l.finish(tx, buf.B)
	if l.tracer != nil {
		l.tracer.sent(tx.QPN, buf.B)
	}
	return tx
}

// finish completes a frame.
func (l *Loop) finish(tx *qp.Transmit, f []byte) {
	if tx.Payload != nil {
		l.enc.FinishWith(f, tx.NetLen, tx.PayloadAt, tx.Payload)
		l.eng.Copied()
	} else {
		l.enc.Finish(f, tx.NetLen)
	}
	l.ctr.TxBytes += uint64(len(f))
}

// flush sends n packets in the first used free buffers. The port owns these buffers afterwards.
func (l *Loop) flush(used, n int) {
	l.eng.TransmitEnd()
	if l.bound.output.Rate > 0 {
		l.passed(l.txBuffers()[:used])
	}
	sent, err := l.port.Send(l.txBuffers()[:used])
	if err != nil {
		l.ctr.PortErrors++
	}
	l.ctr.TxFrames += uint64(sent)
	l.ctr.TxDropped += uint64(n - sent)
	l.txAt, l.txn = l.txAt+used, l.txn-used
}

// SendPending sends pending ACKs and everything else that the engine has ready. Call it before q
// goes away: the peer would retransmit in vain if the ACK of its last message were missing. Owner
// only.
func (l *Loop) SendPending(q *qp.QP) {
	if l.closed {
		return
	}
	for range 2 { // an ACK waits for the step after the last data
		l.transmit(l.now())
	}
	if b := l.Buffer(); b != nil { // the ACK may wait for the backlog or for a reply
		if tx := l.eng.PollAck(q, b[:len(b)-bth.ICRCLen]); tx != nil {
			l.Send(tx.QPN, tx.Len, tx.NetLen)
		}
	}
}

// Buffer returns a free transmit buffer in which the host builds one packet for Send; nil if the
// port has none. Owner only.
func (l *Loop) Buffer() []byte {
	if !l.allocate(0) {
		return nil
	}
	return l.txBuffers()[0].B
}

// Send completes and sends the packet in the buffer that Buffer returned, of the QP with number
// qpn: n bytes from the Ethernet header to the end of the payload, of which netLen bytes precede
// the BTH. Send appends the ICRC. Owner only.
func (l *Loop) Send(qpn bth.QPN, n, netLen int) {
	buf := &l.txBuffers()[0]
	buf.B = buf.B[:n+bth.ICRCLen]
	l.enc.Finish(buf.B, netLen)
	l.ctr.TxBytes += uint64(len(buf.B))
	if l.tracer != nil {
		l.tracer.sent(qpn, buf.B)
	}
	l.flush(1, 1)
}
