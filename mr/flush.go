package mr

// Flush runs a FLUSH (IBA annex A19) of n bytes at addr, or of the whole region
// or window, for a packet of the QP with this PD and scope. need is FlushGlobal,
// FlushPersistent or both, and the region has to grant it.
//
// When it returns OK, everything that was written to those bytes before is
// visible to all, and with FlushPersistent it has been made to last by the
// region's own means; Failed if those reported an error.
func (t *Table) Flush(pd *PD, s *Scope, key Key, addr uint64, n uint32, whole bool, need Access) Verdict {
	m := t.remote.find(key)
	if m == nil || m.rkey != key || m.live.Load()&liveRemote == 0 {
		return BadKey
	}
	if m.pd != pd {
		if v := m.scoped(pd, s); v != OK {
			return v
		}
	}
	if whole { // the annex: address and length do not count
		addr, n = m.addr, 0
	}
	mem, v := m.grant(addr, n, need)
	if v != OK {
		return v
	}
	if whole {
		mem = m.mem
	}
	// Visible: CopyIn ended in a store in release order, and whoever learns of
	// the answer to this FLUSH does so through a later one. Nothing is held back
	// in this process, so there is nothing more to do.
	if need&FlushPersistent != 0 && len(mem) > 0 && m.ext.persist(mem) != nil {
		return Failed
	}
	return OK
}
