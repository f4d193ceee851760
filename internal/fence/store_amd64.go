//go:build !race

package fence

import "sync/atomic"

// Store publishes v: an atomic load that returns v sees everything written before. Unlike an atomic
// store, later loads may overtake it.
//
//go:noescape
func Store(p *atomic.Uint32, v uint32)

// Store64 is Store for 8 bytes, which must be aligned.
//
//go:noescape
func Store64(p *atomic.Uint64, v uint64)

// Order keeps later loads from overtaking earlier calls of Store. It waits until these stores are
// visible to all processors.
func Order()
