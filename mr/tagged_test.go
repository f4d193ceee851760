package mr

import "testing"

// tagged is a bind of a tagged window to the bytes [0x1040, 0x1080), with the next tag.
func (r *mwRig) tagged(w *Window, a Access) *Bind {
	old := w.TaggedKey()
	return &Bind{RKey: old&^tagMask | (old+1)&tagMask, Old: old, LKey: r.m.LKey(), Addr: 0x1040,
		Len: 64, Access: a}
}

func (r *mwRig) taggedWindow(typ WindowType) *Window {
	r.t.Helper()
	w, err := r.tab.AllocTaggedWindow(r.pd, typ)
	if err != nil {
		r.t.Fatal(err)
	}
	if w.TaggedKey() == 0 || w.RKey() != 0 {
		r.t.Fatalf("TaggedKey() = %#x, RKey() = %#x, want a key and 0", w.TaggedKey(), w.RKey())
	}
	return w
}

func TestTaggedWindowType1(t *testing.T) {
	r := newMWRig(t)
	w := r.taggedWindow(Type1)
	first := w.TaggedKey()
	for range 300 { // more than there are tags
		last := w.TaggedKey()
		k := r.bind(r.tagged(w, RemoteWrite))
		if w.TaggedKey() != k || w.RKey() != k || k>>tagBits != first>>tagBits {
			t.Fatalf("TaggedKey() = %#x, RKey() = %#x, want %#x", w.TaggedKey(), w.RKey(), k)
		}
		r.check(nil, k, 0x1040, 64, RemoteWrite, OK)
		r.check(nil, k, 0x1040, 64, RemoteRead, Denied)
		r.check(nil, last, 0x1040, 64, RemoteWrite, BadKey)
	}
	bad := r.tagged(w, RemoteWrite)
	bad.Old++
	r.want("bind with a wrong present key", r.tab.Bind(r.pd, r.s, bad), ErrKey)
	none := r.tagged(w, 0)
	none.Len = 0
	r.bind(none)
	if w.TaggedKey() != none.RKey || w.RKey() != 0 {
		t.Fatalf("after unbinding: TaggedKey() = %#x, RKey() = %#x", w.TaggedKey(), w.RKey())
	}
	r.check(nil, none.RKey, 0x1040, 64, RemoteWrite, BadKey)
	r.want("deregister", r.tab.Deregister(r.m), nil)
}

func TestTaggedWindowType2(t *testing.T) {
	r := newMWRig(t)
	w := r.taggedWindow(Type2)
	for range 3 {
		k := r.bind(r.tagged(w, RemoteRead))
		r.check(r.s, k, 0x1040, 64, RemoteRead, OK)
		r.check(new(Scope), k, 0x1040, 64, RemoteRead, WrongQP)
		r.want("bind again", r.tab.Bind(r.pd, r.s, r.tagged(w, RemoteRead)), ErrBusy)
		r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, k), nil)
		r.check(r.s, k, 0x1040, 64, RemoteRead, BadKey)
	}
	k := r.bind(r.tagged(w, RemoteRead))
	r.want("deregister a region with a window", r.tab.Deregister(r.m), ErrBusy)
	r.want("free", r.tab.FreeWindow(w), nil)
	r.check(r.s, k, 0x1040, 64, RemoteRead, BadKey)
	r.want("deregister", r.tab.Deregister(r.m), nil)
	r.want("free again", r.tab.FreeWindow(w), ErrClosed)
	bind := &Bind{RKey: k, Old: k, LKey: r.m.LKey(), Addr: 0x1040, Len: 64}
	r.want("bind a freed window", r.tab.Bind(r.pd, r.s, bind), ErrKey)
}

// Keys of regions and of tagged windows differ.
func TestTaggedPrefixes(t *testing.T) {
	r := newMWRig(t)
	seen := map[Key]bool{}
	for range 1000 {
		p := r.taggedWindow(Type2).TaggedKey() >> tagBits
		if seen[p] || r.tab.inUse(p) {
			t.Fatalf("prefix %#x is used twice", p)
		}
		seen[p] = true
		m := register(t, r.tab, r.pd, words(8), 0, RemoteRead)
		if seen[m.RKey()>>tagBits] || seen[m.LKey()>>tagBits] {
			t.Fatalf("keys %#x and %#x are those of a window", m.LKey(), m.RKey())
		}
	}
}
