package mr

// Verdict is the result of a check.
type Verdict uint8

const (
	// OK: access is granted.
	OK Verdict = iota
	// BadKey: no live region has this key.
	BadKey
	// WrongPD: the region belongs to another protection domain.
	WrongPD
	// Bounds: the range is not entirely inside the region.
	Bounds
	// Denied: the region does not grant the access.
	Denied
	// WrongQP: the memory window is bound to another queue pair.
	WrongQP
	// NotYet: the range will be accessible after a posted REG_MR has run.
	NotYet
	// Failed: the memory could not be made persistent.
	Failed
	// Foreign: access is granted, and the result is the local copy of memory of another process.
	// The caller calls Backing.Load before it reads the bytes and Backing.Store after it wrote
	// them.
	Foreign
)

var verdictNames = [...]string{
	"ok", "bad key", "wrong protection domain", "out of bounds", "access denied",
	"window bound to another queue pair", "not yet registered", "not made persistent",
	"memory of another process",
}

// String returns the verdict as text.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown verdict"
}

// CheckLocal returns the bytes [addr, addr+n) of the region with this L_Key. The region must belong
// to pd, contain the range, and grant need, which is LocalWrite, or 0 for reading. The result may
// be used until the current step of the engine's owner ends. CheckLocal may be called from any
// goroutine, concurrently with Register and Deregister. It does not allocate.
func (t *Table) CheckLocal(pd *PD, key Key, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	m := t.local.find(key)
	if m == nil || m.lkey != key || m.live.Load()&liveLocal == 0 {
		return nil, m.notYet(pd, key, addr, n, need)
	}
	if m.pd != pd {
		return nil, WrongPD
	}
	return m.grant(addr, n, need)
}

// notYet distinguishes a key that a posted REG_MR will make live from an invalid one.
func (m *MR) notYet(pd *PD, key Key, addr uint64, n uint32, need Access) Verdict {
	if m == nil || m.lkey != key || m.live.Load() != livePrepared {
		return BadKey
	}
	if m.pd != pd {
		return WrongPD
	}
	if _, v := m.grant(addr, n, need); v != OK && v != Foreign {
		return v
	}
	return NotYet
}

// CheckRemote is CheckLocal for an R_Key from a packet. need is one or more of RemoteWrite,
// RemoteRead and RemoteAtomic (IBA 9.7.4.1.5, C9-94). It does not accept windows of type 2; see
// CheckScope.
func (t *Table) CheckRemote(pd *PD, key Key, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	return t.CheckScope(pd, nil, key, addr, n, need)
}

// CheckScope is CheckRemote for a packet of the QP with scope s. It also accepts windows of type 2
// that are bound to that QP.
func (t *Table) CheckScope(pd *PD, s *Scope, key Key, addr uint64, n uint32, need Access) (
	[]byte, Verdict) {
	m := t.remote.find(key)
	if m == nil {
		m = t.findTagged(key)
	}
	if m == nil || m.rkey != key || m.live.Load()&liveRemote == 0 {
		return nil, BadKey
	}
	if m.pd != pd {
		if v := m.scoped(pd, s); v != OK {
			return nil, v
		}
	}
	return m.grant(addr, n, need)
}

// scoped checks whether m is a window of type 2 that the QP may use. Both PD and QP must match (IBA
// 10.6.7, type 2B).
func (m *MR) scoped(pd *PD, s *Scope) Verdict {
	switch x := m.ext; {
	case x == nil || x.pd != pd:
		return WrongPD
	case x.scope != s:
		return WrongQP
	}
	return OK
}

// grant checks range and access. It does not add addresses, which could overflow: modulo 2^64, the
// distance from the start is too large for every address outside of the region.
func (m *MR) grant(addr uint64, n uint32, need Access) ([]byte, Verdict) {
	off, size := addr-m.addr, uint64(len(m.mem))
	switch {
	case off > size || uint64(n) > size-off:
		return nil, Bounds
	case m.access&(need|foreign) != need:
		if m.access&need != need {
			return nil, Denied
		}
		return m.mem[off : off+uint64(n) : off+uint64(n)], Foreign
	}
	return m.mem[off : off+uint64(n) : off+uint64(n)], OK
}
