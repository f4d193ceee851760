package demo

import (
	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

// startWord is the initial value of B's word. It is so large that FETCH_ADD wraps.
const startWord = ^uint64(0) - 1000

// atomics runs count atomics on one word of B, batch at a time. A gets the old value for each, so
// lost, duplicated or reordered atomics are noticed.
func (t *trial) atomics(count, batch int) error {
	if t.next == 0 {
		t.word = startWord
		t.d.b.MR.Store64(inArea, startWord)
	}
	for done := 0; done < count; {
		k := min(batch, count-done)
		for i := range k {
			t.d.a.MR.Store64(inArea+i*stride, ^uint64(0)/3)
		}
		took, err := t.exchange(k)
		if err != nil {
			return err
		}
		if err := t.verifyAtomics(k); err != nil {
			return err
		}
		t.next += int64(k)
		done += k
		t.record(k, took, batch > 1)
	}
	return nil
}

// operands returns the operands of atomic n. Every fourth CMP_SWAP compares with a value that the
// word does not have.
func (t *trial) operands(n int64) (compare, swapAdd uint64) {
	if t.o.op == roce.OpFetchAdd {
		return 0, uint64(n)%7 + 1
	}
	compare = casWord(n)
	if n%4 == 3 {
		compare++
	}
	return compare, casWord(n + 1)
}

// casWord returns B's word before CMP_SWAP n.
func casWord(n int64) uint64 {
	if n == 0 {
		return startWord
	}
	if (n-1)%4 == 3 { // compared with a wrong value and did not swap
		return casWord(n - 1)
	}
	return uint64(n) * 0x9E37_79B9_7F4A_7C15
}

// verifyAtomics checks the old values that A got for the first k atomics of the round, and B's
// word.
func (t *trial) verifyAtomics(k int) error {
	for i := range k {
		n := t.first + int64(i)
		if got := t.d.a.MR.Load64(inArea + i*stride); got != t.word {
			return t.wrong(n, "A got the old value %#x, want %#x", got, t.word)
		}
		compare, swapAdd := t.operands(n)
		t.word = verify.Atomic(t.o.op, t.word, compare, swapAdd)
	}
	if got := t.d.b.MR.Load64(inArea); got != t.word {
		return t.wrong(t.first+int64(k)-1, "B's word is %#x, want %#x", got, t.word)
	}
	return nil
}
