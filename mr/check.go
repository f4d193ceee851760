package mr

// Verdict is the outcome of a check.
type Verdict uint8

const (
	// OK: the view is granted.
	OK Verdict = iota
	// BadKey: no live region has this key (in this domain, local or remote).
	BadKey
	// WrongPD: the region belongs to another protection domain.
	WrongPD
	// Bounds: the range is not wholly inside the region.
	Bounds
	// Denied: the region does not grant the right.
	Denied
	// WrongQP: the memory window is bound to another queue pair.
	WrongQP
	// NotYet: the range is granted as soon as a REG_MR work request has run.
	NotYet
	// Failed: the memory could not be made persistent.
	Failed
)

var verdictNames = [...]string{"ok", "bad key", "wrong protection domain", "out of bounds", "access denied",
	"window bound to another queue pair", "not yet registered", "not made persistent"}

// String names the verdict.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "unknown verdict"
}

// CheckLocal gives the bytes [addr, addr+n) of the region with this L_Key, if
// it is of this PD, holds the range and grants need (LocalWrite, or 0 to
// read). The view is valid for the handling of the packet or work request at
// hand. Any thread, concurrent with Register and Deregister; no allocation.
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

// notYet tells a key that a posted REG_MR will make live from a bad one.
func (m *MR) notYet(pd *PD, key Key, addr uint64, n uint32, need Access) Verdict {
	if m == nil || m.lkey != key || m.live.Load() != livePrepared {
		return BadKey
	}
	if m.pd != pd {
		return WrongPD
	}
	if _, v := m.grant(addr, n, need); v != OK {
		return v
	}
	return NotYet
}

// CheckRemote does the same for an R_Key that came with a packet: need is one
// or more of RemoteWrite, RemoteRead, RemoteAtomic (IBA 9.7.4.1.5, C9-94).
// Windows of type 2 are closed to it; see CheckScope.
func (t *Table) CheckRemote(pd *PD, key Key, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	return t.CheckScope(pd, nil, key, addr, n, need)
}

// CheckScope is CheckRemote for a packet of the QP whose scope is s: windows of
// type 2 that are bound to that QP open too.
func (t *Table) CheckScope(pd *PD, s *Scope, key Key, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	m := t.remote.find(key)
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

// scoped tells whether m is a window of type 2 that this QP may use (IBA
// 10.6.7, type 2B: both the PD and the QP have to be the right ones).
func (m *MR) scoped(pd *PD, s *Scope) Verdict {
	switch x := m.ext; {
	case x == nil || x.pd != pd:
		return WrongPD
	case x.scope != s:
		return WrongQP
	}
	return OK
}

// grant does not add addresses: the distance from the start, taken modulo
// 2^64, is too large for every address outside, so nothing can wrap around.
func (m *MR) grant(addr uint64, n uint32, need Access) ([]byte, Verdict) {
	off, size := addr-m.addr, uint64(len(m.mem))
	switch {
	case off > size || uint64(n) > size-off:
		return nil, Bounds
	case m.access&need != need:
		return nil, Denied
	}
	return m.mem[off : off+uint64(n) : off+uint64(n)], OK
}
