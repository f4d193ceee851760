package mr

import "github.com/gorxe/gorxe/mr/prefetch"

// Looking ahead: whoever knows early which key comes next has the processor fetch what the check of that key will read, in the
// chain key -> protection entry (the MR) -> memory. Each step needs what the one before it fetched, so there is time
// between them. Nothing is checked here and nothing is granted: a key that is nobody's fetches a line in vain.

// AheadLocal fetches where the L_Key is looked up, AheadRemote the same for an R_Key.
func (t *Table) AheadLocal(key Key)  { t.local.ahead(key) }
func (t *Table) AheadRemote(key Key) { t.remote.ahead(key) }

// AheadMR fetches the region that the key names, once the look-up's memory is here.
func (t *Table) AheadMR(key Key, remote bool) {
	if m := t.index(remote).find(key); m != nil {
		prefetch.Object(m, 1)
	}
}

// AheadMemory fetches the first lines of [addr, addr+n), once the region is here.
func (t *Table) AheadMemory(key Key, remote bool, addr uint64, n uint32) {
	m := t.index(remote).find(key)
	if m == nil {
		return
	}
	if off, size := addr-m.addr, uint64(len(m.mem)); off < size {
		prefetch.Bytes(m.mem[off:off+min(uint64(n), size-off)], aheadLines)
	}
}

// aheadLines is how much of a payload is fetched: the processor itself sees that a copy goes on line by line.
const aheadLines = 2

// Places is how many keys the table of R_Keys has room for at the moment, taken or not. Any thread.
func (t *Table) Places() int { return len(t.remote.cur.Load().keys) }

func (t *Table) index(remote bool) *index {
	if remote {
		return &t.remote
	}
	return &t.local
}

// ahead fetches the bucket: its keys and its regions lie in a line each.
func (x *index) ahead(key Key) {
	b := x.cur.Load()
	at := uint32(key) & b.mask &^ (bucketSize - 1)
	prefetch.Pair(&b.keys[at], &b.mrs[at])
}
