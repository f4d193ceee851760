package demo

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"

	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

// poison is the content of buffers before a message arrives, and of the guard after it.
const poison = 0xA5

// fill writes the content of message n: its number, if that fits, and pseudo-random bytes.
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

// target returns the memory that message i of the round is written or read to, including the guard.
// It returns nil for SENDs.
func (t *trial) target(i int) []byte {
	switch {
	case t.o.op == roce.OpRead:
		return t.d.a.MR.Bytes()[inArea+i*stride:][:t.size+guard]
	case t.o.op == roce.OpWrite || t.o.op == roce.OpWriteImm:
		return t.d.b.MR.Bytes()[inArea+i*stride:][:t.size+guard]
	}
	return nil
}

// source returns the memory that message i of the round is sent or read from.
func (t *trial) source(i int) []byte {
	e := t.d.a
	if t.o.op == roce.OpRead {
		e = t.d.b
	}
	return e.MR.Bytes()[outArea+i*stride:][:t.size]
}

// prepare fills the sources and poisons the targets of a round of k messages.
func (t *trial) prepare(k int) error {
	for i := range k {
		n := t.next + int64(i)
		t.fill(t.source(i), n)
		b := t.target(i)
		fillPoison(b)
		if !t.o.reliable() && b != nil {
			// The last byte shows that the message has landed, so it must differ before.
			t.fill(t.expected, n)
			t.lastByte = t.expected[t.size-1]
			b[t.size-1] = ^t.lastByte
		}
	}
	if t.o.op == roce.OpSendInv {
		return t.grantKeys(k)
	}
	return nil
}

// verify checks the k messages of the round and returns how many have arrived.
func (t *trial) verify(k int) (int, error) {
	got := k
	var err error
	switch {
	case t.o.recv:
		got, err = t.verifyReceives(k)
	case t.o.reliable():
		for i := 0; i < k && err == nil; i++ {
			err = t.verifyTarget(i)
		}
	default:
		got = 0
		for i := 0; i < k && err == nil; i++ {
			var whole bool
			if whole, err = t.verifyPackets(i); whole {
				got++
			}
		}
	}
	if err == nil && t.o.op == roce.OpSendInv {
		err = t.dropKeys()
	}
	return got, err
}

// verifyReceives checks the receives that completed and posts them again.
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
		if err := t.d.postRecv(t.o.qp, slot, t.grh()+t.size); err != nil {
			return 0, err
		}
	}
	return len(t.recv), nil
}

// number returns the number of the message of receive completion i of the round. Reliable messages
// arrive completely and in order. Unreliable ones carry their number.
func (t *trial) number(wc *roce.WC, i, k int) (int64, error) {
	if t.o.reliable() {
		return t.first + int64(i), nil
	}
	var low uint32
	if t.o.imm {
		low = immOf(int64(wc.Imm))
	} else if b := t.received(wc); len(b) >= wordSize {
		low = binary.LittleEndian.Uint32(b)
	}
	for n := t.first; n < t.first+int64(k); n++ {
		if uint32(n) == low {
			return n, nil
		}
	}
	return 0, t.wrong(int64(low), "arrived but was not sent in this round")
}

// received returns the payload of a receive completion.
func (t *trial) received(wc *roce.WC) []byte {
	off := t.grh()
	b := t.d.recvBuffer(t.o.qp, int(wc.ID&idSlotMask))
	return b[off:max(off, min(int(wc.ByteLen), len(b)))]
}

func (t *trial) grh() int {
	if t.o.qp == ud {
		return roce.GRHLen
	}
	return 0
}

// verifyReceive checks the receive completion of message n and the data.
func (t *trial) verifyReceive(wc *roce.WC, n int64) error {
	m := verify.Message{
		Op: t.o.op, Len: t.size, SrcQP: t.d.a.QPs[t.o.qp].QPN(), Imm: immOf(n), UD: t.o.qp == ud,
	}
	if t.o.op == roce.OpSendInv {
		m.InvKey = t.keys[n-t.first].RKey()
	}
	if diff := verify.Receive(wc, &m); diff != "" {
		return t.wrong(n, "receive completion with %s", diff)
	}
	if want := t.d.b.QPs[t.o.qp].QPN(); wc.QPN != want {
		return t.wrong(n, "receive completion on QP %v, want %v", wc.QPN, want)
	}
	if t.o.op == roce.OpWriteImm {
		return t.verifyTarget(int(n - t.first))
	}
	b := t.d.recvBuffer(t.o.qp, int(wc.ID&idSlotMask))
	return t.verifyBytes(b[t.grh():][:t.size+guard], n)
}

// verifyTarget checks the memory that message i of the round was written or read to.
func (t *trial) verifyTarget(i int) error { return t.verifyBytes(t.target(i), t.first+int64(i)) }

// verifyBytes checks that b holds message n and an unchanged guard.
func (t *trial) verifyBytes(b []byte, n int64) error {
	t.fill(t.expected, n)
	if from, to := verify.Diff(b[:t.size], t.expected); from < to {
		return t.wrong(n, "bytes %d to %d differ from what was sent", from, to)
	}
	for _, v := range b[t.size:] {
		if v != poison {
			return t.wrong(n, "a byte after the message has changed")
		}
	}
	return nil
}

// verifyPackets checks UC WRITE i of the round, of which any packet may be lost: the memory of each
// packet is new or unchanged. It reports whether all of it is new.
func (t *trial) verifyPackets(i int) (whole bool, err error) {
	n, b := t.first+int64(i), t.target(i)
	t.fill(t.expected, n)
	if bytes.Equal(b[:t.size], t.expected) {
		return true, t.verifyBytes(b, n)
	}
	old := bytes.Repeat([]byte{poison}, t.size+guard)
	old[t.size-1] = ^t.expected[t.size-1]
	if !bytes.Equal(b[t.size:], old[t.size:]) {
		return false, t.wrong(n, "a byte after the message has changed")
	}
	for at := 0; at < t.size; at += int(t.d.MTU) {
		end := min(at+int(t.d.MTU), t.size)
		if !bytes.Equal(b[at:end], t.expected[at:end]) && !bytes.Equal(b[at:end], old[at:end]) {
			return false, t.wrong(n, "the packet at byte %d is neither the one sent nor missing",
				at)
		}
	}
	return false, nil
}

// fillPoison fills b with poison.
func fillPoison(b []byte) {
	for i := range min(len(b), guard) {
		b[i] = poison
	}
	for done := guard; done < len(b); done *= 2 {
		copy(b[done:], b[:done])
	}
}

// poisonReceives poisons the receive buffers before messages of another size. An incomplete UC
// message may have left data where the next size has its guard.
func (d *Demo) poisonReceives(o *operation) {
	if !o.recv || o.reliable() {
		return
	}
	for slot := range depth {
		fillPoison(d.recvBuffer(o.qp, slot))
	}
}

func recvOffset(qp, slot int) int { return recvArea + qp*area + slot*stride }

// recvBuffer returns the memory of a receive slot.
func (d *Demo) recvBuffer(qp, slot int) []byte {
	return d.b.MR.Bytes()[recvOffset(qp, slot):][:stride]
}

// postRecv posts the receive of a slot. The first used bytes of the buffer hold an old message.
func (d *Demo) postRecv(qp, slot, used int) error {
	fillPoison(d.recvBuffer(qp, slot)[:used])
	return d.b.QPs[qp].PostRecv(roce.RecvWR{
		ID:   uint64(qp)<<idQPShift | uint64(slot),
		SGEs: []roce.SGE{d.b.MR.SGE(recvOffset(qp, slot), maxMessage)},
	})
}
