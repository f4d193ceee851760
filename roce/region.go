package roce

import (
	"math"

	"github.com/gorxe/gorxe/mr"
)

// region has the methods that MR and FastReg share.
type region struct{ m *mr.MR }

// LKey returns the key with which local work requests name the memory.
func (r *region) LKey() LKey { return LKey(r.m.LKey()) }

// RKey returns the key with which peers name the memory. It is 0 if the memory has no remote access
// right.
func (r *region) RKey() RKey { return RKey(r.m.RKey()) }

// Addr returns the address of the first byte, as work requests and peers use it.
func (r *region) Addr() uint64 { return r.m.Addr() }

// Len returns the length in bytes.
func (r *region) Len() int { return r.m.Len() }

// Access returns the access rights.
func (r *region) Access() Access { return Access(r.m.Access()) }

// Bytes returns the memory itself. Use the Load and Store methods on bytes that a peer may be
// writing or reading; see the package comment. After Close the memory is still accessible, and no
// longer changed by the Device.
func (r *region) Bytes() []byte { return r.m.Bytes() }

// Registered reports whether the L_Key is valid.
func (r *region) Registered() bool { return r.m.Registered() }

// RemoteLive reports whether the R_Key is valid. It is not if there is none, or if a peer has
// invalidated it.
func (r *region) RemoteLive() bool { return r.m.RemoteLive() }

// SGE returns the range of n bytes at offset off. Posting checks its bounds. A negative n, or one
// above 2^32-1, becomes the length 2^32-1, which posting refuses.
func (r *region) SGE(off, n int) SGE {
	length := uint32(min(uint64(n), math.MaxUint32))
	return SGE{Addr: r.m.Addr() + uint64(off), Length: length, LKey: LKey(r.m.LKey())}
}

// Remote returns what a peer needs to access the memory.
func (r *region) Remote() RemoteBuffer {
	return RemoteBuffer{Addr: r.m.Addr(), RKey: RKey(r.m.RKey()), Len: uint64(r.m.Len())}
}

// Load8 atomically loads the byte at offset off, with acquire ordering. It panics if off is outside
// the memory.
func (r *region) Load8(off int) byte { return r.m.Load8(off) }

// Store8 atomically stores the byte at offset off, with release ordering. It panics if off is
// outside the memory.
func (r *region) Store8(off int, v byte) { r.m.Store8(off, v) }

// Load32 atomically loads 4 bytes at offset off, in host byte order and with acquire ordering. It
// panics if they are outside the memory or not aligned.
func (r *region) Load32(off int) uint32 { return r.m.Load32(off) }

// Store32 atomically stores 4 bytes at offset off, in host byte order and with release ordering. It
// panics if they are outside the memory or not aligned.
func (r *region) Store32(off int, v uint32) { r.m.Store32(off, v) }

// Load64 atomically loads 8 bytes at offset off, in host byte order and with acquire ordering. It
// panics if they are outside the memory or not aligned.
func (r *region) Load64(off int) uint64 { return r.m.Load64(off) }

// Store64 atomically stores 8 bytes at offset off, in host byte order and with release ordering. It
// panics if they are outside the memory or not aligned.
func (r *region) Store64(off int, v uint64) { r.m.Store64(off, v) }

// Add64 atomically adds to the 8 bytes at offset off, in host byte order, and returns the new
// value. It is atomic with respect to the atomic operations of peers, too.
func (r *region) Add64(off int, add uint64) uint64 { return r.m.Add64(off, add) }

// CompareAndSwap64 atomically stores v into the 8 bytes at offset off if they equal old, and
// reports whether it did. It is atomic with respect to the atomic operations of peers, too.
func (r *region) CompareAndSwap64(off int, old, v uint64) bool {
	return r.m.CompareAndSwap64(off, old, v)
}
