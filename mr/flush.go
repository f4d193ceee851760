package mr

// Flush executes a FLUSH (IBA annex A19) of n bytes at addr, or of the whole region or window, for
// a packet of the QP with this PD and scope. need is FlushGlobal, FlushPersistent or both, which
// the region must grant.
//
// When it returns OK, all earlier writes to those bytes are visible and, with FlushPersistent,
// persistent. It returns Failed if the region's persist function reported an error.
func (t *Table) Flush(pd *PD, s *Scope, key Key, addr uint64, n uint32, whole bool,
	need Access) Verdict {
	m := t.findRemote(key)
	if m == nil || m.rkey != key || m.live.Load()&liveRemote == 0 {
		return BadKey
	}
	if m.pd != pd {
		if v := m.scoped(pd, s); v != OK {
			return v
		}
	}
	if whole { // A19: address and length are ignored
		addr, n = m.addr, 0
	}
	mem, v := m.grant(addr, n, need)
	if v != OK && v != Foreign {
		return v
	}
	if whole {
		mem = m.mem
	}
	// Earlier writes are already visible: CopyIn ends with a release store, and the response to
	// this FLUSH is sent after it.
	if need&FlushPersistent != 0 && len(mem) > 0 && m.ext.persist(mem) != nil {
		return Failed
	}
	return OK
}
