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
)

var verdictNames = [...]string{"ok", "bad key", "wrong protection domain", "out of bounds", "access denied"}

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
		return nil, BadKey
	}
	return m.grant(pd, addr, n, need)
}

// CheckRemote does the same for an R_Key that came with a packet: need is one
// or more of RemoteWrite, RemoteRead, RemoteAtomic (IBA 9.7.4.1.5, C9-94).
func (t *Table) CheckRemote(pd *PD, key Key, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	m := t.remote.find(key)
	if m == nil || m.rkey != key || m.live.Load()&liveRemote == 0 {
		return nil, BadKey
	}
	return m.grant(pd, addr, n, need)
}

// grant does not add addresses: the distance from the start, taken modulo
// 2^64, is too large for every address outside, so nothing can wrap around.
func (m *MR) grant(pd *PD, addr uint64, n uint32, need Access) ([]byte, Verdict) {
	off, size := addr-m.addr, uint64(len(m.mem))
	switch {
	case m.pd != pd:
		return nil, WrongPD
	case off > size || uint64(n) > size-off:
		return nil, Bounds
	case m.access&need != need:
		return nil, Denied
	}
	return m.mem[off : off+uint64(n) : off+uint64(n)], OK
}
