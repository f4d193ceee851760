package demo

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/gorxe/gorxe/roce"
)

// poison is what memory holds before a message comes, and behind it afterwards.
const poison = 0xA5

// fill writes message n: its number first, if there is room, then bytes that
// no other message has.
func (t *trial) fill(b []byte, n int64) {
	src := rand.NewPCG(t.seed, uint64(n))
	i := 0
	for ; i+8 <= len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], src.Uint64())
	}
	for v := src.Uint64(); i < len(b); i++ {
		b[i] = byte(v)
		v >>= 8
	}
	if len(b) >= wordSize {
		binary.LittleEndian.PutUint64(b, uint64(n))
	}
}

// byteAt is byte i of message n.
func (t *trial) byteAt(n int64, i int) byte {
	t.fill(t.expected, n)
	return t.expected[i]
}

// target is where the round's message i arrives, with the guard behind it; nil if that is a receive's buffer.
func (t *trial) target(i int) []byte {
	switch {
	case t.st.op == roce.OpRead:
		return t.r.a.mr.Bytes()[inArea+i*stride:][:t.size+guard]
	case t.st.op == roce.OpWrite || t.st.op == roce.OpWriteImm:
		return t.r.b.mr.Bytes()[inArea+i*stride:][:t.size+guard]
	}
	return nil
}

// source is where the round's message i comes from.
func (t *trial) source(i int) []byte {
	n := t.r.a
	if t.st.op == roce.OpRead {
		n = t.r.b
	}
	return n.mr.Bytes()[outArea+i*stride:][:t.size]
}

// prepare fills the sources and poisons the targets of a round.
func (t *trial) prepare(k int) error {
	for i := range k {
		n := t.next + int64(i)
		t.fill(t.source(i), n)
		b := t.target(i)
		spoil(b)
		if !t.st.reliable() && b != nil {
			// The last byte tells a message that has landed, so it must differ before.
			t.lastByte = t.byteAt(n, t.size-1)
			b[t.size-1] = ^t.lastByte
		}
	}
	if t.st.op == roce.OpSendInv {
		return t.grantKeys(k)
	}
	return nil
}

// verify checks the round's messages and returns how many have arrived.
func (t *trial) verify(k int) (int, error) {
	got := k
	var err error
	switch {
	case t.st.recv:
		got, err = t.verifyReceives(k)
	case t.st.reliable():
		for i := 0; i < k && err == nil; i++ {
			err = t.verifyTarget(i)
		}
	default:
		got = 0
		for i := 0; i < k && err == nil; i++ {
			var whole bool
			if whole, err = t.verifyPieces(i); whole {
				got++
			}
		}
	}
	if err == nil && t.st.op == roce.OpSendInv {
		err = t.dropKeys()
	}
	return got, err
}

// verifyReceives checks what the receives brought, and posts them again.
func (t *trial) verifyReceives(k int) (int, error) {
	last := t.first - 1
	for i := range t.recv {
		wc := &t.recv[i]
		n, err := t.number(wc, i, k)
		if err != nil {
			return 0, err
		}
		if n <= last {
			return 0, t.wrong(n, "arrived after message %d", last)
		}
		last = n
		if err := t.verifyReceive(wc, n); err != nil {
			return 0, err
		}
		slot := int(wc.ID & idSlotMask)
		if err := t.r.b.postRecv(t.st.qp, slot, t.grh()+t.size); err != nil {
			return 0, err
		}
	}
	return len(t.recv), nil
}

// number finds which message a completion is about. RC: all of them, in order.
// Else the message carries its number.
func (t *trial) number(wc *roce.WC, i, k int) (int64, error) {
	if t.st.reliable() {
		return t.first + int64(i), nil
	}
	var low uint32
	if t.st.imm {
		low = immOf(int64(wc.Imm))
	} else if b := t.received(wc); len(b) >= wordSize {
		low = binary.LittleEndian.Uint32(b)
	}
	for n := t.first; n < t.first+int64(k); n++ {
		if uint32(n) == low {
			return n, nil
		}
	}
	return 0, t.wrong(int64(low), "arrived, but was not sent in this round")
}

// received is the data that a receive's completion is about.
func (t *trial) received(wc *roce.WC) []byte {
	off := t.grh()
	b := t.r.b.recvBuffer(t.st.qp, int(wc.ID&idSlotMask))
	return b[off:max(off, min(int(wc.ByteLen), len(b)))]
}

func (t *trial) grh() int {
	if t.st.qp == ud {
		return roce.GRHLen
	}
	return 0
}

// verifyReceive checks a completion, and the data that it announces.
func (t *trial) verifyReceive(wc *roce.WC, n int64) error {
	write := t.st.op == roce.OpWriteImm
	want, length := roce.WCRecv, t.size+t.grh()
	if write {
		want = roce.WCRecvWriteImm
	}
	switch {
	case wc.Opcode != want:
		return t.wrong(n, "completed as %v", wc.Opcode)
	case int(wc.ByteLen) != length:
		return t.wrong(n, "%d bytes arrived", wc.ByteLen)
	case t.st.imm != (wc.Flags&roce.WCWithImm != 0), t.st.imm && wc.Imm != immOf(n):
		return t.wrong(n, "immediate data %#x (flags %#x)", wc.Imm, wc.Flags)
	case wc.QPN != t.r.b.qps[t.st.qp].QPN():
		return t.wrong(n, "completed on QP %#x", uint32(wc.QPN))
	case t.st.qp == ud && (wc.Flags&roce.WCGRH == 0 || wc.SrcQP != t.r.a.qps[ud].QPN()):
		return t.wrong(n, "from QP %#x (flags %#x)", uint32(wc.SrcQP), wc.Flags)
	case t.st.op == roce.OpSendInv:
		if key := t.keys[n-t.first].RKey(); wc.Flags&roce.WCWithInv == 0 || wc.InvKey != key {
			return t.wrong(n, "key %#x invalidated instead of %#x", uint32(wc.InvKey), uint32(key))
		}
	}
	if write {
		return t.verifyTarget(int(n - t.first))
	}
	off := t.grh()
	return t.verifyBytes(t.r.b.recvBuffer(t.st.qp, int(wc.ID&idSlotMask))[off:off+t.size+guard], n)
}

// verifyTarget checks the place that the round's message i was written or read to.
func (t *trial) verifyTarget(i int) error { return t.verifyBytes(t.target(i), t.first+int64(i)) }

// verifyBytes checks that b is message n, with the guard behind it untouched.
func (t *trial) verifyBytes(b []byte, n int64) error {
	t.fill(t.expected, n)
	if !bytes.Equal(b[:t.size], t.expected) {
		return t.wrong(n, "the data is not what was sent")
	}
	for _, v := range b[t.size:] {
		if v != poison {
			return t.wrong(n, "a byte behind the data has changed")
		}
	}
	return nil
}

// verifyPieces checks a UC WRITE, of which every packet may be lost: each piece is either new or untouched. It tells
// whether all of it is new.
func (t *trial) verifyPieces(i int) (whole bool, err error) {
	n, b := t.first+int64(i), t.target(i)
	t.fill(t.expected, n)
	if bytes.Equal(b[:t.size], t.expected) {
		return true, t.verifyBytes(b, n)
	}
	old := bytes.Repeat([]byte{poison}, t.size+guard)
	old[t.size-1] = ^t.expected[t.size-1]
	if !bytes.Equal(b[t.size:], old[t.size:]) {
		return false, t.wrong(n, "a byte behind the data has changed")
	}
	for at := 0; at < t.size; at += int(t.r.mtu) {
		end := min(at+int(t.r.mtu), t.size)
		if !bytes.Equal(b[at:end], t.expected[at:end]) && !bytes.Equal(b[at:end], old[at:end]) {
			return false, t.wrong(n, "the packet at byte %d is neither what was sent nor missing", at)
		}
	}
	return false, nil
}

// spoil fills b with poison.
func spoil(b []byte) {
	for i := range min(len(b), guard) {
		b[i] = poison
	}
	for done := guard; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// cleanSlots spoils the receive slots before messages of another size: of a UC message that
// lost its end, something may be left where the next size has its guard.
func (n *node) cleanSlots(st *step) {
	if !st.recv || st.reliable() {
		return
	}
	for slot := range depth {
		spoil(n.recvBuffer(st.qp, slot))
	}
}

// recvBuffer is the memory of a receive slot.
func (n *node) recvBuffer(qp, slot int) []byte {
	return n.mr.Bytes()[recvArea+qp*area+slot*stride:][:stride]
}

// postRecv posts a receive slot again whose first used bytes were written to.
func (n *node) postRecv(qp, slot, used int) error {
	spoil(n.recvBuffer(qp, slot)[:used])
	return n.qps[qp].PostRecv(roce.RecvWR{
		ID:   uint64(qp)<<idQPShift | uint64(slot),
		SGEs: []roce.SGE{n.mr.SGE(recvArea+qp*area+slot*stride, maxMessage)},
	})
}
