package roce

import (
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// Few objects are left on ordinary pages; from hugeFrom on, huge pages are asked for wherever a QP, a ring, a region's record or a
// table is, those made before included.
func TestHugePages(t *testing.T) {
	if !hugeHere() {
		t.Skip("transparent huge pages are off here, or pages are not of 4 KiB")
	}
	link := newLink(t, loopback.Config{})
	e := newEnd(t, newDevice(t, link, 0, WithProgress(Manual)), rigConfig{}) // one QP, one MR
	var mems []*MR
	for range 300 {
		mems = append(mems, newMR(t, e))
	}
	var qps []*QP
	for e.huge.objects < hugeFrom-1 {
		qps = append(qps, newQP(t, e))
	}
	if e.huge.blocks != nil {
		t.Errorf("%d objects are many already", e.huge.objects)
	}
	for range 2 * hugeEvery {
		qps = append(qps, newQP(t, e))
	}
	advised := func(what string) func(addr, n uintptr) {
		return func(addr, n uintptr) {
			for at := addr &^ (hugeSize - 1); at < addr+n; at += hugeSize {
				if _, ok := e.huge.blocks[at]; !ok {
					t.Fatalf("%s at %#x, %d bytes, lies beside the blocks advised", what, addr, n)
				}
			}
		}
	}
	for _, q := range qps {
		q.memory(advised("a QP"))
	}
	for _, m := range mems {
		m.memory(advised("a region"))
	}
	e.mrs.Memory(advised("a table of keys"))
	if n := len(e.huge.pending); n >= hugeBatch {
		t.Errorf("%d blocks wait to be joined", n)
	}
}
