package mr

import "github.com/gorxe/gorxe/internal/prefetch"

// Looking ahead: whoever knows early which key comes next has the processor fetch what the check of that key will read, in the
// chain key -> protection entry (the MR) -> memory. Each step needs what the one before it fetched, so there is time
// between them. Nothing is checked here and nothing is granted: a key that is nobody's fetches a line in vain.

// AheadLocal fetches where the L_Key is looked up, AheadRemote the same for an R_Key.
func (t *Table) PrefetchLocal(key Key)  { t.local.prefetch(key) }
func (t *Table) PrefetchRemote(key Key) { t.remote.prefetch(key) }

// AheadMR fetches the region that the key names, once the look-up's memory is here, and returns it for AheadMemory alone; nil if there is
// none.
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

// Fetched finds the region of an L_Key, which AheadMR has fetched since, for AheadMemory; nil if there is none.
func (t *Table) LookupLocal(key Key) *MR { return t.local.find(key) }

// AheadMemory fetches the first lines of [addr, addr+n) in a region, once that is here.
func (m *MR) PrefetchMemory(addr uint64, n uint32) {
	if off, size := addr-m.addr, uint64(len(m.mem)); off < size {
		prefetch.Bytes(m.mem[off:off+min(uint64(n), size-off)], prefetchLines)
	}
}

// aheadLines is how much of a payload is fetched: the processor itself sees that a copy goes on line by line.
const prefetchLines = 2

// Places is how many keys the table of R_Keys has room for at the moment, taken or not. Any thread.
func (t *Table) RemoteCapacity() int { return t.remote.cur.Load().capacity() }

// nearBuckets is how large a table is that stays in the nearest caches.
const nearBuckets = 256

// ahead fetches the key's bucket.
func (x *index) prefetch(key Key) {
	if b := *x.cur.Load(); len(b) > nearBuckets {
		prefetch.Object(b.of(key), 1)
	}
}
