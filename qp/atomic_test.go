package qp

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/gorxe/gorxe/bth"
)

func (k *talk) word(off int) uint64 { return binary.NativeEndian.Uint64(k.mem[off:]) }

func (k *talk) setWord(off int, v uint64) { binary.NativeEndian.PutUint64(k.mem[off:], v) }

// IBA 9.4.5: FETCH_ADD adds modulo 2^64, CMP_SWAP swaps if equal. Both return the original value
// and change only the 8 bytes.
func TestAtomicOperations(t *testing.T) {
	const off = 64
	for _, c := range []struct {
		p                    pkt
		before, after, answr uint64
	}{
		{pkt{op: bth.RCFetchAdd, swap: 5}, 10, 15, 10},
		{pkt{op: bth.RCFetchAdd, swap: 2}, 1<<64 - 1, 1, 1<<64 - 1},
		{pkt{op: bth.RCFetchAdd, swap: 1<<64 - 3}, 10, 7, 10},
		{pkt{op: bth.RCCmpSwap, compare: 10, swap: 99}, 10, 99, 10},
		{pkt{op: bth.RCCmpSwap, compare: 11, swap: 99}, 10, 10, 10},
	} {
		k := newTalk(t, RC)
		k.setWord(off, c.before)
		k.snapshot()
		c.p.va, c.p.key = k.at(off), k.rkey()
		k.say(c.p)
		k.hears(fmt.Sprintf("ATOMIC Acknowledge +0 msn=1 orig=%d", c.answr))
		k.equal("word", k.word(off), c.after)
		k.unchanged([2]int{off, off + 8})
	}
}

// IBA 9.4.5: the address of an atomic must be aligned. Otherwise the request is invalid (IBA
// 9.7.5.2.3) and has no effect.
func TestAtomicAlignment(t *testing.T) {
	for off := 1; off < 8; off++ {
		k := newTalk(t, RC)
		k.snapshot()
		k.say(k.fetchAdd(0, 64+off, 1))
		k.refused(invalid, "QP_REQ_ERR")
		k.unchanged()
	}
}

// IBA 9.7.5.1.3: an atomic is executed once, however often its request arrives. A duplicate gets
// the saved result, even if the word has changed since.
func TestAtomicExactlyOnce(t *testing.T) {
	k := newTalk(t, RC)
	k.setWord(0, 100)
	p := k.fetchAdd(0, 0, 1)
	k.say(p, p, p)
	k.hears("ATOMIC Acknowledge +0 msn=1 orig=100") // the answer was still queued: one answers all
	k.say(k.fetchAdd(1, 0, 1))
	k.hears("ATOMIC Acknowledge +1 msn=2 orig=101")
	k.setWord(0, 5000)
	k.say(p)
	k.hears("ATOMIC Acknowledge +0 msn=1 orig=100")
	k.say(k.fetchAdd(1, 0, 1))
	k.hears("ATOMIC Acknowledge +1 msn=2 orig=101")
	k.equal("word", k.word(0), uint64(5000))
}

// As many results are saved as may be outstanding. A duplicate of an older atomic cannot come from
// a correct requester; it is dropped and never executed.
func TestAtomicOlderThanSaved(t *testing.T) {
	k := newTalk(t, RC) // 4 outstanding
	for i := range 5 {
		k.say(k.fetchAdd(i, 0, 1))
		k.hears(fmt.Sprintf("ATOMIC Acknowledge +%d msn=%d orig=%d", i, i+1, i))
	}
	k.say(k.fetchAdd(0, 0, 1))
	k.hears()
	k.equal("drops", k.Counters().DropReplay, uint64(1))
	for i := 1; i < 5; i++ {
		k.say(k.fetchAdd(i, 0, 1))
		k.hears(fmt.Sprintf("ATOMIC Acknowledge +%d msn=%d orig=%d", i, i+1, i))
	}
	k.equal("word", k.word(0), uint64(5))
	k.is(RTS)
}

// A duplicate whose PSN was not an atomic finds no saved result.
func TestAtomicDuplicateOfAnotherOperation(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)))
	k.hears("ACK +0 msn=1")
	k.setWord(0, 1)
	k.say(k.fetchAdd(0, 0, 1))
	k.hears()
	k.equal("word", k.word(0), uint64(1))
}

// Answers to atomics and READs are sent in PSN order. The ACK for what follows them comes last (IBA
// 9.7.5.1.1).
func TestAtomicAndReadAnswersInOrder(t *testing.T) {
	k := newTalk(t, RC)
	k.say(k.fetchAdd(0, 0, 1), k.read(1, 0, 300), k.fetchAdd(3, 0, 1), k.write(4, seq(8)))
	k.hears(
		"ATOMIC Acknowledge +0 msn=1 orig=0",
		"RDMA READ response First +1 msn=2 256B",
		"RDMA READ response Last +2 msn=2 44B",
		"ATOMIC Acknowledge +3 msn=3 orig=1",
	)
	k.hears("ACK +4 msn=4")
}

// IBA 9.7.4.1: more READs and atomics than agreed (max_dest_rd_atomic) are an invalid request, and
// the excess one is not executed. The limit can be zero.
func TestTooManyOutstanding(t *testing.T) {
	k := newTalk(t, RC)
	for i := range 5 {
		k.say(k.fetchAdd(i, 0, 1))
	}
	k.equal("executed", k.word(0), uint64(4))
	k.hears(
		"ATOMIC Acknowledge +0 msn=1 orig=0",
		"ATOMIC Acknowledge +1 msn=2 orig=1",
		"ATOMIC Acknowledge +2 msn=3 orig=2",
		"ATOMIC Acknowledge +3 msn=4 orig=3",
		"NAK invalid request +4 msn=4",
	)
	k.raises("QP_REQ_ERR")

	for _, p := range []func(k *talk) pkt{
		func(k *talk) pkt { return k.fetchAdd(0, 0, 1) },
		func(k *talk) pkt { return k.read(0, 0, 8) },
	} {
		k := newTalk(t, RC, func(_ *InitAttr, a *Attr) { a.MaxDestRdAtomic = 0 })
		k.snapshot()
		k.say(p(k))
		k.refused(invalid, "QP_REQ_ERR")
		k.unchanged()
	}
}

// At the requester the original value is stored to the SGEs in host byte order, even if the SGE
// list splits it (IBA 9.4.5, 11.4.1.1).
func TestAtomicResultAtRequester(t *testing.T) {
	k := newTalk(t, RC)
	k.post(SendWR{ID: 1, Op: OpCmpSwap, Flags: Signaled, SGEs: []SGE{k.sge(0, 8)},
		RemoteAddr: 0x1000, RKey: 9, Compare: 3, SwapAdd: 4},
		SendWR{ID: 2, Op: OpFetchAdd, Flags: Signaled, SGEs: []SGE{k.sge(16, 3), k.sge(32, 5)},
			RemoteAddr: 0x1008, RKey: 9, SwapAdd: 7})
	ps := k.listen()
	k.equal("packets", len(ps), 2)
	cs, fa := ps[0].AtomicETH(), ps[1].AtomicETH()
	k.equal("CMP_SWAP", fmt.Sprint(ps[0].Info.Op, cs.VA(), cs.RKey(), cs.Compare(), cs.SwapAdd()),
		fmt.Sprint(bth.OpCmpSwap, 0x1000, 9, 3, 4))
	k.equal("FETCH_ADD", fmt.Sprint(ps[1].Info.Op, fa.VA(), fa.RKey(), fa.SwapAdd()),
		fmt.Sprint(bth.OpFetchAdd, 0x1008, 9, 7))
	const v = 0x1122334455667788
	k.say(pkt{op: bth.RCAtomicAck, psn: 0, syndrome: bth.ACKNoLimit, orig: v},
		pkt{op: bth.RCAtomicAck, psn: 1, syndrome: bth.ACKNoLimit, orig: v + 1})
	k.completes("1 success COMP_SWAP 8B", "2 success FETCH_ADD 8B")
	k.equal("result", k.word(0), uint64(v))
	k.equal("split result",
		binary.NativeEndian.Uint64(append(append([]byte{}, k.mem[16:19]...), k.mem[32:37]...)),
		uint64(v+1))
}
