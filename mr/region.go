package mr

import (
	"strings"
	"sync/atomic"
)

// Key is an L_Key or an R_Key (IBA 10.6.3). 0 is never a key.
type Key uint32

// Access is a set of access flags. Except for RemoteInvalidate, the values are those of
// ibv_access_flags.
type Access uint16

const (
	// LocalWrite lets the device write for the local side: receives, READ responses and results of
	// atomics. Local reading is always allowed.
	LocalWrite Access = 1 << 0
	// RemoteWrite lets peers WRITE. It requires LocalWrite.
	RemoteWrite Access = 1 << 1
	// RemoteRead lets peers READ.
	RemoteRead Access = 1 << 2
	// RemoteAtomic lets peers CMP_SWAP and FETCH_ADD. It requires LocalWrite.
	RemoteAtomic Access = 1 << 3
	// MWBind lets memory windows be bound to the region.
	MWBind Access = 1 << 4
	// ZeroBased gives the region's first byte address 0, for peers and SGEs.
	ZeroBased Access = 1 << 5
	// RemoteInvalidate lets a peer invalidate the R_Key with SEND with invalidate.
	RemoteInvalidate Access = 1 << 6

	// FlushGlobal lets peers FLUSH for global visibility (IBA annex A19).
	FlushGlobal Access = 1 << 8
	// FlushPersistent lets peers FLUSH for persistence; see RegisterPersistent.
	FlushPersistent Access = 1 << 9

	// foreign marks memory of another process; see Backing.
	foreign Access = 1 << 15

	// remoteRights are the flags for which a region needs an R_Key.
	remoteRights = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent
	allRights    = LocalWrite | remoteRights | MWBind | ZeroBased | RemoteInvalidate
	// windowRights are the flags that a window may grant (IBA 10.6.7).
	windowRights = remoteRights | ZeroBased
)

var accessNames = [...]struct {
	bit  Access
	name string
}{
	{LocalWrite, "local-write"}, {RemoteWrite, "remote-write"}, {RemoteRead, "remote-read"},
	{RemoteAtomic, "remote-atomic"}, {MWBind, "mw-bind"}, {ZeroBased, "zero-based"},
	{RemoteInvalidate, "remote-invalidate"},
	{FlushGlobal, "flush-global"}, {FlushPersistent, "flush-persistent"},
}

// String lists the flags, such as "local-write,remote-read". It is "local-read" if there are none.
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

// Bits of MR.live. 0 means invalid, permanently.
const (
	liveLocal    = 1 << 0 // the L_Key is valid
	liveRemote   = 1 << 1 // the R_Key is valid; invalidation clears it
	livePrepared = 1 << 2 // the key waits for its work request
	liveBinding  = 1 << 3 // that work request is running
)

// MR is a memory region: memory of the caller, its addresses for work requests and peers, access
// flags and keys. Only live changes after Register.
//
// A record of this type also represents each key of a memory window and each registration of a fast
// MR (see keyowner.go). Its fields are set before live makes the key valid, and not read before.
type MR struct {
	// The data path reads these fields, which fit one cache line.
	live   atomic.Uint32
	lkey   Key // 0: a window
	rkey   Key
	access Access
	pd     *PD // nil: a window of type 2, see ext
	addr   uint64
	mem    []byte
	ext    *ext // nil for plain regions
}

// ext holds what only few regions need.
type ext struct {
	windows refs               // windows bound to this region
	persist func([]byte) error // makes memory persistent
	backing Backing            // where the memory is, if it is that of another process

	keyOwner *keyOwner // the window or fast MR whose key this is
	parent   *MR       // window: its region
	pd       *PD       // window of type 2: its PD
	scope    *Scope    // window of type 2: the QP that it is bound to
}

// LKey returns the key for SGEs.
func (m *MR) LKey() Key { return m.lkey }

// RKey returns the key for peers, or 0 if the region grants no remote access. The value does not
// change after Invalidate or Deregister, but it is no longer valid.
func (m *MR) RKey() Key { return m.rkey }

// Addr returns the address of the first byte for SGEs and peers.
func (m *MR) Addr() uint64 { return m.addr }

// Len returns the length in bytes.
func (m *MR) Len() int { return len(m.mem) }

// Bytes returns the registered memory. See the memory model in the package comment before reading
// what a peer may be writing.
func (m *MR) Bytes() []byte { return m.mem }

// Access returns the access flags.
func (m *MR) Access() Access { return m.access &^ foreign }

// PD returns the protection domain.
func (m *MR) PD() *PD { return m.pd }

// Registered reports whether the L_Key is valid.
func (m *MR) Registered() bool { return m.live.Load()&liveLocal != 0 }

// RemoteLive reports whether the R_Key is valid. It is false if there is none, and after Invalidate
// or Deregister.
func (m *MR) RemoteLive() bool { return m.live.Load()&liveRemote != 0 }
