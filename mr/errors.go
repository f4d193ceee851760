package mr

import "errors"

// Errors of the control plane are wrapped with details; test for them with errors.Is. The functions
// of the data path (Bind, RegisterFast, the Invalidates) return them unwrapped and do not allocate.
var (
	// ErrConfig: the Config of NewTable is invalid.
	ErrConfig = errors.New("mr: invalid configuration; set Rand, and limits within their range")
	// ErrTooMany: MaxPD or MaxMR is reached.
	ErrTooMany = errors.New("mr: too many; release some or raise the limit")
	// ErrExhausted: every key value has been used once.
	ErrExhausted = errors.New("mr: all key values used; open the device again")
	// ErrBusy: the object is still used: a PD by regions, windows, queue pairs or SRQs, a region by
	// windows, a bound window by a QP.
	ErrBusy = errors.New("mr: still in use; close or invalidate what depends on it first")
	// ErrClosed: the object was released before.
	ErrClosed = errors.New("mr: already released")
	// ErrPD: the object belongs to another protection domain or table.
	ErrPD = errors.New("mr: wrong protection domain; use objects of one PD and one device")
	// ErrQP: the memory window is bound to another queue pair.
	ErrQP = errors.New("mr: window bound to another queue pair; use it through that queue pair")
	// ErrLength: the region is empty or exceeds the address space, or the window exceeds its
	// region.
	ErrLength = errors.New("mr: range empty, or beyond the end of the address space or region")
	// ErrAlign: iova and memory address differ modulo 8, but remote atomics are allowed.
	ErrAlign = errors.New("mr: remote atomics need an iova and a memory address " +
		"that are equal modulo 8")
	// ErrAccess: the access flags contradict each other or do not allow the request.
	ErrAccess = errors.New("mr: access flags do not allow it")
	// ErrKey: no live region has this key.
	ErrKey = errors.New("mr: no region has this key")
)
