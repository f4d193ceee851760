package roce

import (
	"testing"

	"github.com/gorxe/gorxe/loopback"
)

// TestHugePages: with few objects nothing is advised. From hugeFrom objects on, all QPs, rings,
// region records and tables are in advised blocks, including older ones.
func TestHugePages(t *testing.T) {
	if !hugeHere() {
		t.Skip("transparent huge pages are disabled, or the page size is not 4 KiB")
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
		t.Errorf("blocks are advised with %d objects", e.huge.objects)
	}
	for range 2 * hugeEvery {
		qps = append(qps, newQP(t, e))
	}
	advised := func(what string) func(addr, n uintptr) {
		return func(addr, n uintptr) {
			for at := addr &^ (hugeSize - 1); at < addr+n; at += hugeSize {
				if _, ok := e.huge.blocks[at]; !ok {
					t.Fatalf("%s at %#x, %d bytes, is outside the advised blocks", what, addr, n)
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
