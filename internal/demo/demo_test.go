package demo

import (
	"testing"

	"github.com/gorxe/gorxe/roce"
)

func memoryDemo(t *testing.T) *Demo {
	t.Helper()
	d, note, err := New(t.Context(), Config{MTU: 1024, Seed: 7, Memory: true})
	if err != nil || note != "" {
		t.Fatalf("New() = %q, %v", note, err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return d
}

// Wrong data, a changed guard and a wrong old value of an atomic are detected.
func TestVerify(t *testing.T) {
	d := memoryDemo(t)
	newRound := func(op roce.Op) *trial {
		t.Helper()
		tr := newTrial(t.Context(), d, &operation{name: "test", qp: rc, op: op}, small)
		if err := tr.prepare(1); err != nil {
			t.Fatal(err)
		}
		copy(tr.target(0), tr.source(0))
		if _, err := tr.verify(1); err != nil {
			t.Fatalf("%v: verify() = %v before a change", op, err)
		}
		return tr
	}
	for _, op := range []roce.Op{roce.OpWrite, roce.OpRead} {
		for _, at := range []int{0, small - 1, small, small + guard - 1} {
			tr := newRound(op)
			tr.target(0)[at]++
			if _, err := tr.verify(1); err == nil {
				t.Errorf("%v: verify() = nil after a change of byte %d", op, at)
			}
		}
	}
	tr := newTrial(t.Context(), d, &operation{name: "test", qp: rc, op: roce.OpFetchAdd}, wordSize)
	tr.word = 5
	d.a.MR.Store64(inArea, 5)
	d.b.MR.Store64(inArea, 7) // FETCH_ADD 0 adds 1
	if err := tr.verifyAtomics(1); err == nil {
		t.Error("verifyAtomics() = nil with a wrong word")
	}
}
