package mr

import (
	"strings"
	"sync/atomic"
)

// Key is an L_Key or an R_Key (IBA 10.6.3). 0 is never a key.
type Key uint32

// Access is a set of rights. The values of the first five are those of
// ibv_access_flags.
type Access uint8

const (
	// LocalWrite lets the NIC write on behalf of the local side: receives,
	// READ responses, results of atomics. Local reading is always allowed.
	LocalWrite Access = 1 << 0
	// RemoteWrite lets peers WRITE; needs LocalWrite.
	RemoteWrite Access = 1 << 1
	// RemoteRead lets peers READ.
	RemoteRead Access = 1 << 2
	// RemoteAtomic lets peers CMP_SWAP and FETCH_ADD; needs LocalWrite.
	RemoteAtomic Access = 1 << 3
	// ZeroBased: the region's first byte has address 0, for peers and SGEs.
	ZeroBased Access = 1 << 5
	// RemoteInvalidate lets a peer end the R_Key by SEND with invalidate.
	RemoteInvalidate Access = 1 << 6

	// remoteRights are those for which a region needs an R_Key.
	remoteRights = RemoteWrite | RemoteRead | RemoteAtomic
	allRights    = LocalWrite | remoteRights | ZeroBased | RemoteInvalidate
)

var accessNames = [...]struct {
	bit  Access
	name string
}{
	{LocalWrite, "local-write"}, {RemoteWrite, "remote-write"}, {RemoteRead, "remote-read"},
	{RemoteAtomic, "remote-atomic"}, {ZeroBased, "zero-based"}, {RemoteInvalidate, "remote-invalidate"},
}

// String lists the rights: "local-write,remote-read"; "local-read" for none.
func (a Access) String() string {
	var s []string
	for _, n := range accessNames {
		if a&n.bit != 0 {
			s = append(s, n.name)
		}
	}
	if len(s) == 0 {
		return "local-read"
	}
	return strings.Join(s, ",")
}

// Bits of MR.live.
const (
	liveLocal  = 1 << 0 // registered: the L_Key works
	liveRemote = 1 << 1 // the R_Key works; a peer's invalidate clears it
)

// MR is a memory region: caller-owned bytes, the addresses that work requests
// and peers use for them, rights and keys. All but live is fixed at Register.
type MR struct {
	// The hot path reads these; they fit one cache line.
	live   atomic.Uint32
	lkey   Key
	rkey   Key
	access Access
	pd     *PD
	addr   uint64
	mem    []byte
}

// LKey is what SGEs carry.
func (m *MR) LKey() Key { return m.lkey }

// RKey is what peers are told; 0 if the region has no remote right. It stays
// the same number after Invalidate or Deregister, but then opens nothing.
func (m *MR) RKey() Key { return m.rkey }

// Addr is the address of the first byte, as SGEs and peers count it.
func (m *MR) Addr() uint64 { return m.addr }

// Len is the length in bytes.
func (m *MR) Len() int { return len(m.mem) }

// Bytes is the registered memory itself. See the package's memory model
// before reading what a peer may be writing.
func (m *MR) Bytes() []byte { return m.mem }

// Access is the set of rights.
func (m *MR) Access() Access { return m.access }

// PD is the protection domain.
func (m *MR) PD() *PD { return m.pd }

// Registered reports whether the L_Key still works.
func (m *MR) Registered() bool { return m.live.Load()&liveLocal != 0 }

// RemoteLive reports whether the R_Key still works: false if there is none,
// and after Invalidate or Deregister.
func (m *MR) RemoteLive() bool { return m.live.Load()&liveRemote != 0 }
