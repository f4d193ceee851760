package demo

import (
	"time"

	"github.com/gorxe/gorxe/roce"
)

// startWord is where B's word starts: near the end, so that FETCH_ADD wraps.
const startWord = ^uint64(0) - 1000

// atomics does count atomics on one word of B's, batch at a time. A gets the
// word as it was before each, so a lost, doubled or reordered one shows.
func (t *trial) atomics(count, batch int) error {
	word := t.r.b.mr
	if t.next == 0 {
		t.word = startWord
		word.Store64(inArea, startWord)
	}
	for done := 0; done < count; {
		k := min(batch, count-done)
		for i := range k {
			t.r.a.mr.Store64(inArea+i*stride, ^uint64(0)/3)
		}
		start := time.Now()
		if err := t.post(k); err != nil {
			return err
		}
		if err := t.await(k); err != nil {
			return err
		}
		took := t.lastAt.Sub(start)
		if err := t.verifyAtomics(k); err != nil {
			return err
		}
		t.arrived += int64(k)
		t.next += int64(k)
		done += k
		if batch > 1 {
			t.batchTime += took
			t.batched += int64(k)
		} else {
			t.lat.Record(took)
		}
	}
	return nil
}

// operands are the compare and the swap-or-add value of atomic n. Every fourth
// CMP_SWAP compares with a value that the word does not have.
func (t *trial) operands(n int64) (compare, swapAdd uint64) {
	if t.st.op == roce.OpFetchAdd {
		return 0, uint64(n)%7 + 1
	}
	// What the word is when it is n's turn follows from the swaps before it.
	return casWord(n) + b2u(n%4 == 3), casWord(n + 1)
}

// casWord is B's word before CMP_SWAP n, if all before it did what they should.
func casWord(n int64) uint64 {
	if n == 0 {
		return startWord
	}
	if (n-1)%4 == 3 { // it compared with a wrong value: nothing was swapped
		return casWord(n - 1)
	}
	return uint64(n) * 0x9E37_79B9_7F4A_7C15
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// verifyAtomics checks what A got back, and B's word.
func (t *trial) verifyAtomics(k int) error {
	for i := range k {
		n := t.first + int64(i)
		if got := t.r.a.mr.Load64(inArea + i*stride); got != t.word {
			return t.wrong(n, "the word was %#x before it, and A was told %#x", t.word, got)
		}
		compare, swapAdd := t.operands(n)
		switch {
		case t.st.op == roce.OpFetchAdd:
			t.word += swapAdd
		case compare == t.word:
			t.word = swapAdd
		}
	}
	if got := t.r.b.mr.Load64(inArea); got != t.word {
		return t.wrong(t.first+int64(k)-1, "B's word is %#x instead of %#x", got, t.word)
	}
	return nil
}
