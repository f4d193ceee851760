package mr

import (
	"fmt"
	"sync/atomic"
)

// WindowType tells which QPs may bind and use a memory window.
type WindowType uint8

const (
	// Type1 windows are bound and used through any QP of the PD. A bind replaces the previous one.
	// A bind of length 0 only ends it.
	Type1 WindowType = 1
	// Type2 windows are bound and used through one QP (type 2B). They must be invalidated before
	// they are bound again, by LOCAL_INV on that QP or by the peer's SEND with invalidate.
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

// Window is a memory window: a part of a region with its own access flags and R_Key. Work requests
// grant and revoke it without a registration (IBA 10.6.7).
type Window struct {
	keyOwner
	typ WindowType
}

// Scope represents a queue pair from one RESET to the next. Windows of type 2 are bound to it, so
// peers of a later connection cannot use windows of an earlier one.
type Scope struct{ over atomic.Bool }

// End must be called when the QP is reset or destroyed. Its windows become invalid, and can be
// bound again or freed.
func (s *Scope) End() { s.over.Store(true) }

// AllocWindow creates an unbound window. Errors: ErrPD, ErrClosed (the PD), ErrTooMany; ErrAccess
// for an unknown type.
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

// NextRKey draws the R_Key of a future bind. The work request uses it to identify the window. In
// verbs the program chooses the low byte of the next key; here the table chooses the whole key,
// from a sequence without repetitions. The key is invalid until the bind has run, and serves one
// bind. An unused key stays available for a later bind. Errors: ErrClosed, ErrExhausted; ErrTooMany
// if maxOwnerKeys of the window's keys are unused.
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

// DropRKey returns a key of NextRKey that no bind has used.
func (t *Table) DropRKey(w *Window, key Key) {
	for _, m := range w.keys {
		if m.rkey == key {
			m.live.CompareAndSwap(livePrepared, 0)
		}
	}
}

// FreeWindow releases the window, bound or not. Errors: ErrClosed the second time, ErrPD for a
// window of another table.
func (t *Table) FreeWindow(w *Window) error {
	if w == nil || w.table != t {
		return ErrPD
	}
	old := w.cur.Swap(&freed)
	if old == &freed {
		return fmt.Errorf("memory window: %w", ErrClosed)
	}
	if key := w.TaggedKey(); key != 0 {
		t.tagged.remove(key >> tagBits)
		if old != nil {
			old.end()
		}
	}
	w.free()
	return nil
}

// Type returns the window's type.
func (w *Window) Type() WindowType { return w.typ }

// PD returns the window's protection domain.
func (w *Window) PD() *PD { return w.pd }

// RKey returns the key that peers use now, or 0 if the window is not bound. It may be called from
// any goroutine.
func (w *Window) RKey() Key {
	if m := w.cur.Load(); m != nil && m.live.Load()&liveRemote != 0 && !m.orphan() {
		return m.rkey
	}
	return 0
}

// orphan reports whether m is a window of type 2 whose QP no longer exists.
func (m *MR) orphan() bool { return m.ext.scope != nil && m.ext.scope.over.Load() }

// Bind holds the parameters of a bind.
type Bind struct {
	RKey   Key    // identifies the window: from NextRKey, or of a tagged window with any tag
	Old    Key    // of a tagged window: its present key
	LKey   Key    // of the region
	Addr   uint64 // in the region's address space
	Len    uint32 // bytes; 0 unbinds a window of type 1
	Access Access // what peers may do; ZeroBased (type 2 only): the window starts at address 0
}

// Bind executes a bind for the QP with this PD and scope. When it returns, the window's old key is
// invalid and the new one is valid. It may be called from any goroutine and does not allocate.
//
// Errors: ErrKey (R_Key or L_Key), ErrPD, ErrAccess, ErrLength, ErrAlign, and ErrBusy for a window
// of type 2 that is bound.
func (t *Table) Bind(pd *PD, s *Scope, b *Bind) error {
	v := t.remote.find(b.RKey)
	if v == nil {
		v = t.newBinding(b)
	}
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
		return ErrKey // it is being deregistered
	}
	if err := w.bind(v, p, s, b); err != nil {
		p.ext.windows.release()
		return err
	}
	return nil
}

// allows checks a bind to region p. The remote access flags of the region do not matter: a window
// can give a peer part of a region that it cannot access otherwise.
func (w *keyOwner) allows(p *MR, b *Bind) error {
	off, size := b.Addr-p.addr, uint64(len(p.mem))
	switch {
	case p.pd != w.pd: // C10-72
		return ErrPD
	case p.access&MWBind == 0: // C10-73
		return ErrAccess
	// o10-36.2.2
	case b.Access&^windowRights != 0, b.Access&ZeroBased != 0 && w.kind == windowType1:
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

// start returns the address of the window's first byte.
func (b *Bind) start() uint64 {
	if b.Access&ZeroBased != 0 {
		return 0
	}
	return b.Addr
}

// bind completes the record and makes it valid.
func (w *keyOwner) bind(v, p *MR, s *Scope, b *Bind) error {
	if !v.live.CompareAndSwap(livePrepared, liveBinding) {
		return ErrKey
	}
	off := b.Addr - p.addr
	v.mem = p.mem[off : off+uint64(b.Len) : off+uint64(b.Len)]
	v.addr, v.access = b.start(), b.Access|p.access&foreign
	v.ext.parent, v.ext.persist, v.ext.backing = p, p.ext.persist, p.ext.backing
	if w.kind == windowType2 {
		v.ext.scope = s
	}
	if err := w.install(v); err != nil {
		v.live.CompareAndSwap(liveBinding, livePrepared) // allow another try
		return err
	}
	if !v.live.CompareAndSwap(liveBinding, liveRemote) {
		return ErrClosed // the window was freed meanwhile
	}
	w.setTag(v)
	return nil
}

// install makes v the current record of the window and ends the previous one.
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

// unbind uses up key v to end a binding of type 1.
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
	w.setTag(v)
	return nil
}

// setTag sets the key of a tagged window to that of v.
func (w *keyOwner) setTag(v *MR) {
	if w.tagged.Load() != 0 {
		w.tagged.Store(uint32(v.rkey))
	}
}
