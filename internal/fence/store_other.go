//go:build !amd64 || race

package fence

import "sync/atomic"

// Plain says whether Store is cheaper than an atomic store here, and weaker: a later load may overtake it.
const Plain = false

// Store publishes v: whoever loads it by an atomic load sees everything that was written before.
func Store(p *atomic.Uint32, v uint32) { p.Store(v) }

// Store64 is Store for 8 bytes.
func Store64(p *atomic.Uint64, v uint64) { p.Store(v) }

// Order keeps the loads that follow from overtaking Stores before it. Between atomic operations there is nothing to do.
func Order() {}
