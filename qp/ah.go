package qp

import (
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
)

// AH is an address handle: the path to the receiver of UD messages, for SendWR.AH. An AH serves any
// number of work requests and QPs. The device that created it replaces the path when the next hop
// changes; work requests posted afterwards use the new path. All methods may be called from any
// goroutine.
type AH struct {
	path   atomic.Pointer[frame.Path] // replaced, never changed in place
	eng    *Engine                    // whose QPs may use it; nil: any
	closed atomic.Bool
	close  func(*AH)
}

// NewAH returns an address handle with path p, which must not change afterwards. The first call of
// Close calls onClose, which may be nil. QPs of all engines can use it.
func NewAH(p *frame.Path, onClose func(*AH)) *AH {
	a := &AH{close: onClose}
	a.path.Store(p)
	return a
}

// NewAH is the function NewAH, but only QPs of the engine can use the address handle.
func (e *Engine) NewAH(p *frame.Path, onClose func(*AH)) *AH {
	a := &AH{}
	e.InitAH(a, p, onClose)
	return a
}

// InitAH is NewAH for a zero AH.
func (e *Engine) InitAH(a *AH, p *frame.Path, onClose func(*AH)) {
	a.eng, a.close = e, onClose
	a.path.Store(p)
}

// UpdateAH replaces the path of a. p must not change afterwards.
func UpdateAH(a *AH, p *frame.Path) { a.path.Store(p) }

// Path returns the current path, which must not be modified. It is nil for a zero AH.
func (a *AH) Path() *frame.Path { return a.path.Load() }

// Remote returns the address of the receiver.
func (a *AH) Remote() bth.GID {
	if p := a.path.Load(); p != nil {
		return p.GIDs().Remote
	}
	return bth.GID{}
}

// Close releases the address handle: the device no longer updates its path. Posted work requests
// are not affected. It always returns nil; closing twice is harmless.
func (a *AH) Close() error {
	if !a.closed.Swap(true) && a.close != nil {
		a.close(a)
	}
	return nil
}
