package roce

import (
	"bytes"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/qp"
)

// hugePages has the kernel back with huge pages what thousands of QPs and regions are made of. On pages of 4 KiB a message to one
// of them misses the TLB with nearly every line that it touches; with 2 MiB all of them fit.
//
// It is advice on the Go heap's own addresses, in whole blocks that hold at least one of the objects, and changes nothing but
// time. Where transparent huge pages are switched off nothing happens. Under Device.ctl.
type hugePages struct {
	objects int                  // QPs and regions made so far
	blocks  map[uintptr]struct{} // advised; nil until there are many objects
	pending []uintptr            // those whose pages are not joined yet
}

const (
	// hugeFrom is how many objects are many: with fewer the second-level TLB suffices.
	hugeFrom = 1024
	// hugeEvery is after how many objects more the tables are looked at again, which move when they grow.
	hugeEvery = 1024
	// hugeBatch is how many blocks are joined together: each call waits for every processor of the machine.
	hugeBatch = 8
	// hugeSize is a huge page, where pages have 4 KiB.
	hugeSize = 2 << 20
)

// hugeHere tells whether there are such pages, and the administrator allows them to those who ask.
var hugeHere = sync.OnceValue(func() bool {
	modes, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !bytes.Contains(modes, []byte("[never]")) && os.Getpagesize() == 4096
})

// made counts a new object, and tells whether its memory should be named by add, and whether that of all others, too.
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

// tables tells whether it is time to name the tables again.
func (h *hugePages) tables() bool { return h.blocks != nil && h.objects%hugeEvery == 0 }

// add names n bytes of memory from addr on. Pages of a new block that are not in use yet will be huge from the start.
func (h *hugePages) add(addr, n uintptr) {
	for b := addr &^ (hugeSize - 1); b < addr+n; b += hugeSize {
		if _, known := h.blocks[b]; known {
			continue
		}
		h.blocks[b] = struct{}{}
		madvise(b, hugeSize, unix.MADV_HUGEPAGE)
		h.pending = append(h.pending, b)
	}
}

// join makes huge pages of those that were in use before the advice came, which kernels before 6.1 leave to a thread of theirs.
func (h *hugePages) join() {
	slices.Sort(h.pending)
	for len(h.pending) > 0 {
		n := 1
		for n < len(h.pending) && h.pending[n] == h.pending[n-1]+hugeSize {
			n++
		}
		madvise(h.pending[0], uintptr(n)*hugeSize, unix.MADV_COLLAPSE)
		h.pending = h.pending[n:]
	}
	h.pending = nil
}

// madvise fails where memory is short or the kernel is old, and then all is as it was.
func madvise(addr, n uintptr, advice int) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, addr, n, uintptr(advice))
}

// spread names what belongs to a QP or a region that was made just now, and now and then the tables. The caller holds ctl.
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
