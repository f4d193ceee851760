package mr

import (
	"fmt"
	"sync/atomic"
)

// WindowType says who may bind a memory window, and who may use it.
type WindowType uint8

const (
	// Type1: bound through any QP of the PD, used through any QP of the PD. A
	// bind takes the place of the one before it; one of length 0 only ends it.
	Type1 WindowType = 1
	// Type2: bound through one QP, used through that QP alone (type 2B), and to
	// be invalidated before it is bound again: by LOCAL_INV there, or by the
	// peer's SEND with invalidate.
	Type2 WindowType = 2
)

func (t WindowType) String() string {
	switch t {
	case Type1:
		return "type 1"
	case Type2:
		return "type 2B"
	}
	return fmt.Sprintf("unknown type %d", uint8(t))
}

// Window is a memory window: a part of a region, with rights of its own and an
// R_Key that can be given and taken back by work requests, without registering
// (IBA 10.6.7).
type Window struct {
	keyOwner
	typ WindowType
}

// Scope stands for one life of a queue pair, from one RESET to the next.
// Windows of type 2 are bound to it: a peer of the QP's next life can not use
// what the last one was given.
type Scope struct{ over atomic.Bool }

// End is called when the QP is reset or destroyed. Its windows open nothing any
// more, and can be bound anew or freed.
func (s *Scope) End() { s.over.Store(true) }

// AllocWindow makes a window that is not bound. ErrPD, ErrClosed (the PD),
// ErrTooMany; ErrAccess for an unknown type.
func (t *Table) AllocWindow(pd *PD, typ WindowType) (*Window, error) {
	kinds := map[WindowType]ownerKind{Type1: windowType1, Type2: windowType2}
	kind, ok := kinds[typ]
	if !ok {
		return nil, fmt.Errorf("memory window of %v: %w", typ, ErrAccess)
	}
	w := &Window{typ: typ}
	if err := t.initOwner(&w.keyOwner, pd, kind); err != nil {
		return nil, err
	}
	return w, nil
}

// NextRKey draws the R_Key of a coming bind: the work request names it, and so
// the window. Verbs let the program choose the low byte of the next key; here
// the table chooses the whole key, from the sequence that never repeats. The
// key opens nothing until the bind has run, and serves one bind; one that was
// not used stays good for a later bind. ErrClosed, ErrExhausted; ErrTooMany
// with maxSlotKeys of the window's keys unused.
func (t *Table) NextRKey(w *Window) (Key, error) {
	if w == nil || w.table != t {
		return 0, ErrPD
	}
	m := &MR{ext: &ext{keyOwner: &w.keyOwner}}
	if w.kind == windowType1 {
		m.pd = w.pd
	} else {
		m.ext.pd = w.pd
	}
	if err := t.prepare(&w.keyOwner, m, false); err != nil {
		return 0, err
	}
	return m.rkey, nil
}

// DropRKey gives back a key of NextRKey that no bind has used.
func (t *Table) DropRKey(w *Window, key Key) {
	for _, m := range w.keys {
		if m.rkey == key {
			m.live.CompareAndSwap(livePrepared, 0)
		}
	}
}

// FreeWindow ends the window, bound or not. ErrClosed the second time, ErrPD
// for another table's window.
func (t *Table) FreeWindow(w *Window) error {
	if w == nil || w.table != t {
		return ErrPD
	}
	if w.cur.Swap(&freed) == &freed {
		return fmt.Errorf("memory window: %w", ErrClosed)
	}
	w.free()
	return nil
}

// Type is the window's type.
func (w *Window) Type() WindowType { return w.typ }

// PD is the window's protection domain.
func (w *Window) PD() *PD { return w.pd }

// RKey is the key by which peers use the window now; 0 if it is not bound. Any
// thread.
func (w *Window) RKey() Key {
	if m := w.cur.Load(); m != nil && m.live.Load()&liveRemote != 0 && !m.orphan() {
		return m.rkey
	}
	return 0
}

// orphan tells a window of type 2 whose QP is no more.
func (m *MR) orphan() bool { return m.ext.scope != nil && m.ext.scope.over.Load() }

// Bind says what a window is to be bound to.
type Bind struct {
	RKey   Key    // from NextRKey: names the window
	LKey   Key    // of the region
	Addr   uint64 // in the region's addresses
	Len    uint32 // bytes; 0 ends the binding of a window of type 1
	Access Access // what peers may do; ZeroBased (type 2 only): the window begins at address 0
}

// Bind runs a bind for the QP with this PD and scope. From its return the old
// key, if the window had one, opens nothing and the new one opens the window.
// Any thread; allocates nothing.
//
// Errors: ErrKey (R_Key or L_Key), ErrPD, ErrAccess, ErrLength, ErrAlign,
// ErrBusy for a window of type 2 that is bound.
func (t *Table) Bind(pd *PD, s *Scope, b *Bind) error {
	v := t.remote.find(b.RKey)
	if v == nil || v.rkey != b.RKey || v.lkey != 0 || v.live.Load() != livePrepared {
		return ErrKey
	}
	w := v.ext.keyOwner
	if w.pd != pd { // C10-72
		return ErrPD
	}
	if b.Len == 0 {
		return w.unbind(v)
	}
	p := t.local.find(b.LKey)
	if p == nil || p.lkey != b.LKey || p.live.Load()&liveLocal == 0 {
		return ErrKey
	}
	if err := w.allows(p, b); err != nil {
		return err
	}
	if !p.ext.windows.retain() {
		return ErrKey // its end has begun
	}
	if err := w.bind(v, p, s, b); err != nil {
		p.ext.windows.release()
		return err
	}
	return nil
}

// allows checks a bind to region p. The region's own remote rights do not
// matter: a window is how to give a peer part of a region that is closed to it.
func (w *keyOwner) allows(p *MR, b *Bind) error {
	off, size := b.Addr-p.addr, uint64(len(p.mem))
	switch {
	case p.pd != w.pd: // C10-72
		return ErrPD
	case p.access&MWBind == 0: // C10-73
		return ErrAccess
	case b.Access&^windowRights != 0, b.Access&ZeroBased != 0 && w.kind == windowType1: // o10-36.2.2
		return ErrAccess
	case b.Access&(RemoteWrite|RemoteAtomic) != 0 && p.access&LocalWrite == 0: // C10-74
		return ErrAccess
	case b.Access&FlushPersistent != 0 && p.ext.persist == nil:
		return ErrAccess
	case off > size || uint64(b.Len) > size-off: // C10-75
		return ErrLength
	case b.Access&RemoteAtomic != 0 && (b.start()^AddrOf(p.mem[off:]))&7 != 0:
		return ErrAlign
	}
	return nil
}

// start is the address of the window's first byte.
func (b *Bind) start() uint64 {
	if b.Access&ZeroBased != 0 {
		return 0
	}
	return b.Addr
}

// bind fills the record in and puts it to work.
func (w *keyOwner) bind(v, p *MR, s *Scope, b *Bind) error {
	if !v.live.CompareAndSwap(livePrepared, liveBinding) {
		return ErrKey
	}
	off := b.Addr - p.addr
	v.mem = p.mem[off : off+uint64(b.Len) : off+uint64(b.Len)]
	v.addr, v.access = b.start(), b.Access
	v.ext.parent, v.ext.persist = p, p.ext.persist
	if w.kind == windowType2 {
		v.ext.scope = s
	}
	if err := w.install(v); err != nil {
		v.live.CompareAndSwap(liveBinding, livePrepared) // good for another try
		return err
	}
	if !v.live.CompareAndSwap(liveBinding, liveRemote) {
		return ErrClosed // the window was freed meanwhile
	}
	return nil
}

// install makes v the window's record at work and ends the one before it.
func (w *keyOwner) install(v *MR) error {
	for {
		old := w.cur.Load()
		switch {
		case old == &freed:
			return ErrClosed
		case old != nil && w.kind == windowType2 && !old.orphan(): // o10-37.2.30
			return ErrBusy
		}
		if w.cur.CompareAndSwap(old, v) {
			if old != nil {
				old.end()
			}
			return nil
		}
	}
}

// unbind uses key v up to end a binding of type 1.
func (w *keyOwner) unbind(v *MR) error {
	if w.kind != windowType1 { // o10-37.2.40
		return ErrLength
	}
	if !v.live.CompareAndSwap(livePrepared, 0) {
		return ErrKey
	}
	if old := w.cur.Load(); old != nil && old != &freed && w.cur.CompareAndSwap(old, nil) {
		old.end()
	}
	return nil
}
