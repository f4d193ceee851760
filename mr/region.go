package mr

import (
	"strings"
	"sync/atomic"
)

// Key is an L_Key or an R_Key (IBA 10.6.3). 0 is never a key.
type Key uint32

// Access is a set of rights. All but the value of RemoteInvalidate are those of
// ibv_access_flags.
type Access uint16

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
	// MWBind lets memory windows be bound to the region.
	MWBind Access = 1 << 4
	// ZeroBased: the region's first byte has address 0, for peers and SGEs.
	ZeroBased Access = 1 << 5
	// RemoteInvalidate lets a peer end the R_Key by SEND with invalidate.
	RemoteInvalidate Access = 1 << 6

	// FlushGlobal lets peers FLUSH to global visibility (IBA annex A19).
	FlushGlobal Access = 1 << 8
	// FlushPersistent lets peers FLUSH to persistence; see RegisterPersistent.
	FlushPersistent Access = 1 << 9

	// remoteRights are those for which a region needs an R_Key.
	remoteRights = RemoteWrite | RemoteRead | RemoteAtomic | FlushGlobal | FlushPersistent
	allRights    = LocalWrite | remoteRights | MWBind | ZeroBased | RemoteInvalidate
	// windowRights are what a window may grant (IBA 10.6.7).
	windowRights = remoteRights | ZeroBased
)

var accessNames = [...]struct {
	bit  Access
	name string
}{
	{LocalWrite, "local-write"}, {RemoteWrite, "remote-write"}, {RemoteRead, "remote-read"},
	{RemoteAtomic, "remote-atomic"}, {MWBind, "mw-bind"}, {ZeroBased, "zero-based"}, {RemoteInvalidate, "remote-invalidate"},
	{FlushGlobal, "flush-global"}, {FlushPersistent, "flush-persistent"},
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

// Bits of MR.live. 0: dead, for good.
const (
	liveLocal    = 1 << 0 // registered: the L_Key works
	liveRemote   = 1 << 1 // the R_Key works; a peer's invalidate clears it
	livePrepared = 1 << 2 // a key that waits for the work request that makes it live
	liveBinding  = 1 << 3 // that work request is at it
)

// MR is a memory region: caller-owned bytes, the addresses that work requests
// and peers use for them, rights and keys. All but live is fixed at Register.
//
// The same record serves each key of a memory window, and each registration of
// a fast MR (see slot.go): their fields are fixed before live says that the key
// works, and nobody looks at them before.
type MR struct {
	// The hot path reads these; they fit one cache line.
	live   atomic.Uint32
	lkey   Key // 0: a window
	rkey   Key
	access Access
	pd     *PD // nil: a window of type 2, see more
	addr   uint64
	mem    []byte
	ext    *ext // what plain regions do not need
}

// more is what few regions need.
type ext struct {
	windows refs               // bound to this region
	persist func([]byte) error // makes memory persistent

	keyOwner *keyOwner // the window or fast MR that this is a key of
	parent   *MR       // window: the region behind it
	pd       *PD       // window of type 2: its PD, and
	scope    *Scope    // the QP that it is bound to
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
