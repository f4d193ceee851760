package mr

import "errors"

// Errors of the control plane. They are wrapped with what was asked for; test
// with errors.Is. What the data path calls (Bind, RegisterFast, the Invalidates)
// returns them bare, so that it allocates nothing.
var (
	// ErrConfig: NewTable was called without what it needs.
	ErrConfig = errors.New("mr: unusable configuration")
	// ErrTooMany: MaxPD or MaxMR is reached; release some or raise the limit.
	ErrTooMany = errors.New("mr: too many, release some or raise the limit")
	// ErrExhausted: every key value was drawn once; open a new device.
	ErrExhausted = errors.New("mr: key values exhausted, open the device anew")
	// ErrBusy: something still depends on it: regions, windows, queue pairs or
	// SRQs on a PD, windows on a region, a QP on a bound window.
	ErrBusy = errors.New("mr: still in use, close or invalidate what depends on it first")
	// ErrClosed: the object was released before.
	ErrClosed = errors.New("mr: already released")
	// ErrPD: the protection domain is not the one that the object belongs to.
	ErrPD = errors.New("mr: wrong protection domain")
	// ErrQP: the memory window is bound to another queue pair.
	ErrQP = errors.New("mr: window bound to another queue pair")
	// ErrLength: the region has no bytes, or reaches past the last address; a
	// window reaches past its region.
	ErrLength = errors.New("mr: empty, or runs past the end of the address space or of the region behind it")
	// ErrAlign: peers' atomics need iova and memory to agree modulo 8.
	ErrAlign = errors.New("mr: iova and memory differ modulo 8, which remote atomics need alike")
	// ErrAccess: the rights contradict each other, or do not allow the request.
	ErrAccess = errors.New("mr: access rights do not allow it")
	// ErrKey: no live region has this key.
	ErrKey = errors.New("mr: no region has this key")
)
