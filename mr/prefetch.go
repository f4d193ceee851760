package mr

import "github.com/gorxe/gorxe/internal/prefetch"

// Prefetching for a caller that knows a key before it is needed. It brings into the cache what a
// check of the key will read, in the chain key -> record (the MR) -> memory. Each step uses what
// the previous one brought, so the caller lets some time pass between them. Nothing is checked; an
// unknown key only brings a useless line.

// PrefetchLocal brings the bucket of an L_Key into the cache.
func (t *Table) PrefetchLocal(key Key) { t.local.prefetch(key) }

// PrefetchRemote brings the bucket of an R_Key into the cache.
func (t *Table) PrefetchRemote(key Key) { t.remote.prefetch(key) }

// PrefetchMR brings the record of the key's region into the cache, after PrefetchLocal or
// PrefetchRemote. It returns the region, only for PrefetchMemory, or nil.
func (t *Table) PrefetchMR(key Key, remote bool) *MR {
	x := &t.local
	if remote {
		x = &t.remote
	}
	m := x.find(key)
	if m != nil {
		prefetch.Object(m, 1)
	}
	return m
}

// LookupLocal returns the region of an L_Key after PrefetchMR, only for PrefetchMemory, or nil.
func (t *Table) LookupLocal(key Key) *MR { return t.local.find(key) }

// PrefetchMemory brings the first lines of [addr, addr+n) into the cache, after PrefetchMR.
func (m *MR) PrefetchMemory(addr uint64, n uint32) {
	if off, size := addr-m.addr, uint64(len(m.mem)); off < size {
		prefetch.Bytes(m.mem[off:off+min(uint64(n), size-off)], prefetchLines)
	}
}

// prefetchLines is the number of lines of a payload to prefetch. The processor itself prefetches
// the following lines of a copy.
const prefetchLines = 2

// RemoteCapacity returns the current number of slots for R_Keys. It may be called from any
// goroutine.
func (t *Table) RemoteCapacity() int { return t.remote.cur.Load().capacity() }

// nearBuckets is the size of a table that stays in the nearest caches.
const nearBuckets = 256

// prefetch brings the key's bucket into the cache.
func (x *index) prefetch(key Key) {
	if b := *x.cur.Load(); len(b) > nearBuckets {
		prefetch.Object(b.of(key), 1)
	}
}
