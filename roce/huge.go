package roce

import (
	"bytes"
	"os"
	"slices"
	"sync"

	"github.com/gorxe/gorxe/qp"
)

// hugePages advises the kernel to use huge pages for the memory of QPs and regions when there are
// thousands of them. With pages of 4 KiB, a message to one of them causes many TLB misses; with
// pages of 2 MiB the TLB covers them all.
//
// The advice is for whole blocks of the Go heap that contain at least one of the objects. It
// affects only speed, and is not given where transparent huge pages are disabled. Guarded by
// Device.ctl.
type hugePages struct {
	objects int                  // QPs and regions created so far
	blocks  map[uintptr]struct{} // advised; nil while there are few objects
	pending []uintptr            // advised, but not yet collapsed
}

const (
	// hugeFrom is the number of objects from which blocks are advised. The second-level TLB covers
	// fewer.
	hugeFrom = 1024
	// hugeEvery is how many objects are created before the tables, which move when they grow, are
	// advised again.
	hugeEvery = 1024
	// hugeBatch is how many blocks are collapsed together. Each call interrupts all processors.
	hugeBatch = 8
	// hugeSize is the size of a huge page on machines with pages of 4 KiB.
	hugeSize = 2 << 20
)

// hugeHere reports whether transparent huge pages are enabled, at least with madvise.
var hugeHere = sync.OnceValue(func() bool {
	modes, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !bytes.Contains(modes, []byte("[never]")) && os.Getpagesize() == 4096
})

// made counts a new object. It reports whether the memory of the object is to be advised, and
// whether that of all older objects is, too.
func (h *hugePages) made() (this, all bool) {
	if !hugeHere() {
		return false, false
	}
	if h.objects++; h.objects < hugeFrom {
		return false, false
	}
	if h.blocks == nil {
		h.blocks = map[uintptr]struct{}{}
		return true, true
	}
	return true, false
}

// tables reports whether it is time to advise the tables again.
func (h *hugePages) tables() bool { return h.blocks != nil && h.objects%hugeEvery == 0 }

// add advises the n bytes at addr. Pages that are not in use yet become huge at once.
func (h *hugePages) add(addr, n uintptr) {
	for b := addr &^ (hugeSize - 1); b < addr+n; b += hugeSize {
		if _, known := h.blocks[b]; known {
			continue
		}
		h.blocks[b] = struct{}{}
		adviseHuge(b, hugeSize)
		h.pending = append(h.pending, b)
	}
}

// join makes huge pages of advised pages that were already in use. Kernels before 6.1 do this
// later, in a kernel thread.
func (h *hugePages) join() {
	slices.Sort(h.pending)
	for len(h.pending) > 0 {
		n := 1
		for n < len(h.pending) && h.pending[n] == h.pending[n-1]+hugeSize {
			n++
		}
		collapse(h.pending[0], uintptr(n)*hugeSize)
		h.pending = h.pending[n:]
	}
	h.pending = nil
}

// spread advises the memory of a new QP or region, and from time to time the tables. The caller
// holds ctl.
func (d *Device) spread(memory func(visit func(addr, n uintptr))) {
	this, all := d.huge.made()
	if !this {
		return
	}
	if all {
		for q := range d.qps {
			q.memory(d.huge.add)
		}
		for m := range d.mems {
			m.memory(d.huge.add)
		}
	}
	memory(d.huge.add)
	if all || d.huge.tables() {
		d.mrs.Memory(d.huge.add)
		_ = d.do(func(qp.Time) { d.eng.Memory(d.huge.add) })
	}
	if all || len(d.huge.pending) >= hugeBatch {
		d.huge.join()
	}
}
