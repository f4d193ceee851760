//go:build !amd64 || race

package fence

import "sync/atomic"

// Store publishes v: an atomic load that returns v sees everything written before.
func Store(p *atomic.Uint32, v uint32) { p.Store(v) }

// Store64 is Store for 8 bytes.
func Store64(p *atomic.Uint64, v uint64) { p.Store(v) }

// Order keeps later loads from overtaking earlier calls of Store. Atomic operations need nothing.
func Order() {}
