package mr

import "fmt"

// Bits of a key of a tagged window: the upper 24 identify the window, the others are the tag.
const (
	tagBits = 8
	tagMask = 1<<tagBits - 1
)

// maxPrefixTries limits the search for an unused prefix. Even with LimitMaxMR regions one prefix in
// eight is unused, so it practically never fails.
const maxPrefixTries = 1 << 10

// AllocTaggedWindow creates an unbound window with keys as in verbs: each bind sets the low 8 bits
// (the tag) of the key, and the other 24 bits never change. A peer that knows a key can therefore
// guess others. TaggedKey returns the first key. Its binds set Bind.Old, do not use NextRKey, and
// allocate. Errors: those of AllocWindow, and ErrExhausted.
func (t *Table) AllocTaggedWindow(pd *PD, typ WindowType) (*Window, error) {
	w, err := t.AllocWindow(pd, typ)
	if err != nil {
		return nil, err
	}
	prefix, err := t.drawPrefix()
	if err != nil {
		_ = t.FreeWindow(w) // cannot fail: it is new
		return nil, err
	}
	w.tagged.Store(uint32(prefix) << tagBits)
	t.tagged.insert(prefix, &MR{rkey: prefix, ext: &ext{keyOwner: &w.keyOwner}})
	return w, nil
}

// drawPrefix returns the upper bits of the keys of a tagged window. No key with these bits is in
// use.
func (t *Table) drawPrefix() (Key, error) {
	x := &t.tagged
	x.reserve()
	b := *x.cur.Load()
	for range maxPrefixTries {
		prefix := x.perm.at(uint32(x.next)) >> tagBits
		x.next++
		if prefix != 0 && b.of(prefix).has(0) && !b.of(prefix).has(prefix) && !t.inUse(prefix) {
			return prefix, nil
		}
	}
	return 0, fmt.Errorf("prefixes of memory windows: %w", ErrExhausted)
}

// inUse reports whether a key has these upper bits.
func (t *Table) inUse(prefix Key) bool {
	local, remote := *t.local.cur.Load(), *t.remote.cur.Load()
	for tag := Key(0); tag <= tagMask; tag++ {
		key := prefix<<tagBits | tag
		if local.of(key).has(key) || remote.of(key).has(key) {
			return true
		}
	}
	return false
}

// TaggedKey returns the key of the latest bind of a tagged window, or the first key. It returns 0
// for other windows.
func (w *Window) TaggedKey() Key { return Key(w.tagged.Load()) }

// owner returns the tagged window of a key, or nil.
func (t *Table) owner(key Key) *keyOwner {
	prefix := key >> tagBits
	if a := t.tagged.find(prefix); a != nil && a.rkey == prefix {
		return a.ext.keyOwner
	}
	return nil
}

// findRemote returns the record of an R_Key, or nil. The caller must compare the key.
func (t *Table) findRemote(key Key) *MR {
	if m := t.remote.find(key); m != nil {
		return m
	}
	return t.findTagged(key)
}

// findTagged returns the record in use of the tagged window of a key, or nil.
func (t *Table) findTagged(key Key) *MR {
	if w := t.owner(key); w != nil {
		return w.cur.Load()
	}
	return nil
}

// newBinding returns the prepared record of a bind of a tagged window, or nil if a key is wrong.
func (t *Table) newBinding(b *Bind) *MR {
	w := t.owner(b.RKey)
	if w == nil || Key(w.tagged.Load()) != b.Old {
		return nil
	}
	m := &MR{rkey: b.RKey, ext: &ext{keyOwner: w}}
	if w.kind == windowType1 {
		m.pd = w.pd
	} else {
		m.ext.pd = w.pd
	}
	m.live.Store(livePrepared)
	return m
}
