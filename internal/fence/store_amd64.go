//go:build !race

package fence

import "sync/atomic"

// Plain says whether Store is cheaper than an atomic store here, and weaker: a later load may overtake it.
const Plain = true

// Store publishes v: whoever loads it by an atomic load sees everything that was written before. Unlike an atomic store it may
// be overtaken by loads that follow it.
//
//go:noescape
func Store(p *atomic.Uint32, v uint32)

// Store64 is Store for 8 bytes, which must be aligned.
//
//go:noescape
func Store64(p *atomic.Uint64, v uint64)

// Order keeps the loads that follow from overtaking Stores before it: they wait until all of those are seen by everybody.
func Order()
