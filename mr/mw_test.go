package mr

import (
	"errors"
	"testing"
)

// mwRig is a table with a region of 256 bytes at 0x1000 that grants peers nothing but can have
// windows.
type mwRig struct {
	t   *testing.T
	tab *Table
	pd  *PD
	m   *MR
	s   *Scope
}

func newMWRig(t *testing.T) *mwRig {
	tab, pd := newTable(t, Config{})
	return &mwRig{t, tab, pd, register(t, tab, pd, words(256), 0x1000, LocalWrite|MWBind),
		new(Scope)}
}

func (r *mwRig) window(typ WindowType) *Window {
	r.t.Helper()
	w, err := r.tab.AllocWindow(r.pd, typ)
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

func (r *mwRig) key(w *Window) Key {
	r.t.Helper()
	k, err := r.tab.NextRKey(w)
	if err != nil {
		r.t.Fatal(err)
	}
	return k
}

// to returns a bind of w to the bytes [0x1040, 0x1080).
func (r *mwRig) to(w *Window, a Access) *Bind {
	r.t.Helper()
	return &Bind{RKey: r.key(w), LKey: r.m.LKey(), Addr: 0x1040, Len: 64, Access: a}
}

func (r *mwRig) bind(b *Bind) Key {
	r.t.Helper()
	r.want("bind", r.tab.Bind(r.pd, r.s, b), nil)
	return b.RKey
}

func (r *mwRig) want(what string, got, want error) {
	r.t.Helper()
	if !errors.Is(got, want) {
		r.t.Fatalf("%s: %v, want %v", what, got, want)
	}
}

func (r *mwRig) check(s *Scope, k Key, addr uint64, n uint32, need Access, want Verdict) []byte {
	r.t.Helper()
	b, v := r.tab.CheckScope(r.pd, s, k, addr, n, need)
	if v != want {
		r.t.Fatalf("%d bytes at %#x, %v: %v, want %v", n, addr, need, v, want)
	}
	return b
}

// IBA 10.6.7: a window gives peers its own range and access flags of a region, through any QP of
// the PD (type 1).
func TestWindowType1(t *testing.T) {
	r := newMWRig(t)
	w := r.window(Type1)
	if w.RKey() != 0 || w.Type() != Type1 || w.PD() != r.pd {
		t.Fatal("a new window has no key")
	}
	k := r.bind(r.to(w, RemoteWrite))
	if w.RKey() != k || k == 0 {
		t.Fatal("the window's key is the one that was bound")
	}
	b := r.check(nil, k, 0x1040, 64, RemoteWrite, OK)
	if &b[0] != &r.m.Bytes()[0x40] || cap(b) != 64 {
		t.Fatal("the window shows other memory")
	}
	r.check(new(Scope), k, 0x107f, 1, RemoteWrite, OK)
	r.check(nil, k, 0x103f, 1, RemoteWrite, Bounds)
	r.check(nil, k, 0x107f, 2, RemoteWrite, Bounds)
	r.check(nil, k, 0x1040, 8, RemoteRead, Denied)
	r.check(nil, k, 0x1040, 8, RemoteAtomic, Denied)

	// Another bind replaces it. The old key becomes invalid.
	k2 := r.bind(r.to(w, RemoteRead))
	r.check(nil, k, 0x1040, 8, RemoteWrite, BadKey)
	r.check(nil, k2, 0x1040, 8, RemoteRead, OK)

	// A bind of length 0 unbinds the window.
	r.bind(&Bind{RKey: r.key(w)})
	r.check(nil, k2, 0x1040, 8, RemoteRead, BadKey)
	if w.RKey() != 0 {
		t.Fatal("an unbound window has a key")
	}

	// QPs of another PD cannot use it.
	k3 := r.bind(r.to(w, RemoteRead))
	pd2, _ := r.tab.AllocPD()
	if _, v := r.tab.CheckScope(pd2, r.s, k3, 0x1040, 8, RemoteRead); v != WrongPD {
		t.Fatalf("another PD: %v", v)
	}
	// o10-37.2.26: windows of type 1 cannot be invalidated.
	r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, k3), ErrAccess)
	r.check(nil, k3, 0x1040, 8, RemoteRead, OK)
}

// Type 2B: only the QP that bound the window can use it, and it must be invalidated before the next
// bind (o10-37.2.30).
func TestWindowType2(t *testing.T) {
	r := newMWRig(t)
	w, other := r.window(Type2), new(Scope)
	k := r.bind(r.to(w, RemoteRead|RemoteWrite))
	r.check(r.s, k, 0x1040, 64, RemoteRead|RemoteWrite, OK)
	r.check(other, k, 0x1040, 64, RemoteRead, WrongQP)
	r.check(nil, k, 0x1040, 64, RemoteRead, WrongQP)
	if _, v := r.tab.CheckRemote(r.pd, k, 0x1040, 64, RemoteRead); v != WrongQP {
		t.Fatalf("without a QP: %v", v)
	}
	pd2, _ := r.tab.AllocPD()
	if _, v := r.tab.CheckScope(pd2, r.s, k, 0x1040, 8, RemoteRead); v != WrongPD {
		t.Fatalf("another PD: %v", v)
	}
	b := r.to(w, RemoteRead)
	r.want("bind of a bound window", r.tab.Bind(r.pd, r.s, b), ErrBusy)
	r.want("another QP's invalidate", r.tab.InvalidateScope(r.pd, other, k), ErrQP)
	r.want("another PD's invalidate", r.tab.InvalidateScope(pd2, r.s, k), ErrPD)
	r.check(r.s, k, 0x1040, 64, RemoteRead, OK)
	r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, k), nil)
	r.check(r.s, k, 0x1040, 64, RemoteRead, BadKey)
	r.want("invalidate twice", r.tab.InvalidateScope(r.pd, r.s, k), ErrKey)
	if w.RKey() != 0 {
		t.Fatal("an invalidated window has a key")
	}
	r.bind(b) // the key that was rejected while the window was bound is still good
	r.check(r.s, b.RKey, 0x1040, 64, RemoteRead, OK)
	r.check(r.s, k, 0x1040, 64, RemoteRead, BadKey)

	// When the QP is reset, its windows become invalid and can be bound again.
	r.s.End()
	life := new(Scope)
	r.check(life, b.RKey, 0x1040, 64, RemoteRead, WrongQP)
	if w.RKey() != 0 {
		t.Fatal("the window of a reset QP has a key")
	}
	r.s = life
	k = r.bind(r.to(w, RemoteRead))
	r.check(life, k, 0x1040, 64, RemoteRead, OK)
	r.want("invalidate", r.tab.InvalidateScope(r.pd, life, k), nil)
	// no bind that failed or was replaced holds the region
	r.want("deregister", r.tab.Deregister(r.m), nil)
}

// A zero-based window of type 2 has its own addresses.
func TestWindowZeroBased(t *testing.T) {
	r := newMWRig(t)
	k := r.bind(r.to(r.window(Type2), RemoteRead|ZeroBased))
	b := r.check(r.s, k, 0, 64, RemoteRead, OK)
	if &b[0] != &r.m.Bytes()[0x40] {
		t.Fatal("address 0 is not the window's first byte")
	}
	r.check(r.s, k, 1, 64, RemoteRead, Bounds)
	r.check(r.s, k, 0x1040, 1, RemoteRead, Bounds)
}

// The rules for a bind, with their numbers.
func TestBindRules(t *testing.T) {
	r := newMWRig(t)
	w1, w2 := r.window(Type1), r.window(Type2)
	pd2, _ := r.tab.AllocPD()
	readOnly := register(t, r.tab, r.pd, words(64), 0x1040, MWBind)
	plain := register(t, r.tab, r.pd, words(64), 0x1040, LocalWrite)
	foreign := register(t, r.tab, pd2, words(64), 0x1040, LocalWrite|MWBind)
	odd := register(t, r.tab, r.pd, words(128)[4:], 0x1000, LocalWrite|MWBind)
	dead := register(t, r.tab, r.pd, words(64), 0x1040, LocalWrite|MWBind)
	r.want("deregister", r.tab.Deregister(dead), nil)
	for _, c := range []struct {
		name   string
		w      *Window
		change func(b *Bind)
		want   error
	}{
		{"unknown R_Key", w1, func(b *Bind) { b.RKey ^= 1 }, ErrKey},
		{"a region's R_Key", w1,
			func(b *Bind) {
				b.RKey = register(t, r.tab, r.pd, words(8), 0,
					RemoteRead).RKey()
			}, ErrKey},
		{"unknown L_Key", w1, func(b *Bind) { b.LKey ^= 1 }, ErrKey},
		{"deregistered region", w1, func(b *Bind) { b.LKey = dead.LKey() }, ErrKey},
		{"an R_Key for the region", w1, func(b *Bind) { b.LKey = b.RKey }, ErrKey},
		{"C10-72: region of another PD", w1, func(b *Bind) { b.LKey = foreign.LKey() }, ErrPD},
		{"C10-73: region without MWBind", w1, func(b *Bind) { b.LKey = plain.LKey() }, ErrAccess},
		{"C10-74: remote write, no local write", w2,
			func(b *Bind) { b.LKey, b.Access = readOnly.LKey(), RemoteWrite }, ErrAccess},
		{"C10-74: remote atomic, no local write", w2,
			func(b *Bind) { b.LKey, b.Access = readOnly.LKey(), RemoteAtomic }, ErrAccess},
		{"C10-75: before the region", w1, func(b *Bind) { b.Addr = 0xfff }, ErrLength},
		{"C10-75: after the region", w1, func(b *Bind) { b.Addr = 0x10c1 }, ErrLength},
		{"C10-75: longer than the region", w2, func(b *Bind) { b.Addr, b.Len = 0x1000, 257 },
			ErrLength},
		{"C10-75: wraps", w2, func(b *Bind) { b.Addr = 1<<64 - 1 }, ErrLength},
		{"o10-36.2.2: type 1, zero-based", w1, func(b *Bind) { b.Access |= ZeroBased }, ErrAccess},
		{"o10-37.2.40: type 2, no length", w2, func(b *Bind) { b.Len = 0 }, ErrLength},
		{"local write is not available for a window", w2, func(b *Bind) { b.Access |= LocalWrite },
			ErrAccess},
		{"flush-persistent of a region without it", w2,
			func(b *Bind) { b.Access = FlushPersistent }, ErrAccess},
		{"atomics on misaligned memory", w2,
			func(b *Bind) { b.LKey, b.Len, b.Access = odd.LKey(), 8, RemoteAtomic }, ErrAlign},
		{"zero-based atomics on misaligned memory", w2,
			func(b *Bind) { b.Addr, b.Access = 0x1044, RemoteAtomic|ZeroBased }, ErrAlign},
	} {
		b := r.to(c.w, RemoteRead)
		key := b.RKey
		c.change(b)
		if err := r.tab.Bind(r.pd, r.s, b); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		r.tab.DropRKey(c.w, key)
	}
	b := r.to(w1, RemoteRead)
	r.want("C10-72: QP of another PD", r.tab.Bind(pd2, r.s, b), ErrPD)
	r.bind(b)
	r.want("a key used twice", r.tab.Bind(r.pd, r.s, b), ErrKey)
	for m, n := range map[*MR]int{r.m: 1, readOnly: 0, odd: 0} {
		if got := m.ext.windows.users(); got != n {
			t.Errorf("%d windows bound, want %d: a failed bind left something behind", got, n)
		}
	}
	// Read-only windows need no local write.
	r.bind(&Bind{RKey: r.key(w2), LKey: readOnly.LKey(), Addr: 0x1040, Len: 64, Access: RemoteRead})
	// An aligned atomic window.
	r.bind(&Bind{RKey: r.key(w1), LKey: r.m.LKey(), Addr: 0x1048, Len: 8, Access: RemoteAtomic})
}

// IBA 10.6.7: a region with bound windows cannot be deregistered.
func TestDeregisterWithWindows(t *testing.T) {
	r := newMWRig(t)
	w1, w2, w3 := r.window(Type1), r.window(Type2), r.window(Type1)
	r.bind(r.to(w1, RemoteRead))
	k2 := r.bind(r.to(w2, RemoteRead))
	k3 := r.bind(r.to(w3, RemoteRead))
	r.want("three windows", r.tab.Deregister(r.m), ErrBusy)
	r.want("free", r.tab.FreeWindow(w1), nil)
	r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, k2), nil)
	r.want("one window", r.tab.Deregister(r.m), ErrBusy)
	r.check(nil, k3, 0x1040, 1, RemoteRead, OK)
	other := register(t, r.tab, r.pd, words(64), 0x1040, MWBind)
	b := r.to(w3, RemoteRead)
	b.LKey = other.LKey()
	r.bind(b) // moved to another region
	r.want("no window", r.tab.Deregister(r.m), nil)
	r.want("twice", r.tab.Deregister(r.m), ErrClosed)
	r.want("bind to the deregistered region", r.tab.Bind(r.pd, r.s, r.to(w2, RemoteRead)), ErrKey)
	r.want("PD in use", r.tab.DeallocPD(r.pd), ErrBusy)
	for _, w := range []*Window{w2, w3} {
		r.want("free", r.tab.FreeWindow(w), nil)
	}
	r.want("free twice", r.tab.FreeWindow(w3), ErrClosed)
	_, err := r.tab.NextRKey(w3)
	r.want("key of a freed window", err, ErrClosed)
	r.want("deregister", r.tab.Deregister(other), nil)
	r.want("PD", r.tab.DeallocPD(r.pd), nil)
	if r.tab.MRs() != 0 || r.tab.remote.used != 0 || r.tab.local.used != 0 {
		t.Fatalf("left behind: %d objects, %d R_Keys, %d L_Keys", r.tab.MRs(), r.tab.remote.used,
			r.tab.local.used)
	}
}

// Keys of windows come from the sequence without repetitions. A stale key never matches, and
// invalid keys do not accumulate.
func TestWindowKeysNeverRepeat(t *testing.T) {
	r := newMWRig(t)
	ws := []*Window{r.window(Type1), r.window(Type2)}
	seen := map[Key]bool{}
	for i := range 2000 {
		w := ws[i%2]
		old := w.RKey()
		if w.Type() == Type2 && old != 0 {
			r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, old), nil)
		}
		k := r.bind(r.to(w, RemoteRead))
		if seen[k] {
			t.Fatalf("key %#x came twice", k)
		}
		seen[k] = true
		if old != 0 {
			r.check(r.s, old, 0x1040, 1, RemoteRead, BadKey)
		}
	}
	if used := r.tab.remote.used; used > 4 {
		t.Fatalf("%d keys in the index", used)
	}
}

// A key is invalid before its bind has run, and the number of unused keys is limited.
func TestPreparedKeys(t *testing.T) {
	r := newMWRig(t)
	w := r.window(Type1)
	var keys []Key
	for range maxOwnerKeys {
		k := r.key(w)
		r.check(r.s, k, 0x1040, 1, RemoteRead, BadKey)
		r.want("invalidate", r.tab.InvalidateScope(r.pd, r.s, k), ErrKey)
		keys = append(keys, k)
	}
	_, err := r.tab.NextRKey(w)
	r.want("one too many", err, ErrTooMany)
	r.tab.DropRKey(w, keys[0])
	r.want("a dropped key",
		r.tab.Bind(r.pd, r.s, &Bind{RKey: keys[0], LKey: r.m.LKey(), Addr: 0x1000, Len: 1}), ErrKey)
	r.key(w)
	b := &Bind{RKey: keys[7], LKey: r.m.LKey(), Addr: 0x1040, Len: 64, Access: RemoteRead}
	r.bind(b)
	r.tab.DropRKey(w, keys[7]) // it is in use, so nothing is dropped
	r.check(nil, keys[7], 0x1040, 64, RemoteRead, OK)
	r.want("free", r.tab.FreeWindow(w), nil)
	for _, k := range keys {
		r.check(r.s, k, 0x1040, 1, RemoteRead, BadKey)
		r.want("bind", r.tab.Bind(r.pd, r.s,
			&Bind{RKey: k, LKey: r.m.LKey(), Addr: 0x1000, Len: 1}), ErrKey)
	}
}

func TestWindowLimits(t *testing.T) {
	tab, pd := newTable(t, Config{MaxMR: 3})
	_, foreign := newTable(t, Config{})
	for _, c := range []struct {
		pd   *PD
		typ  WindowType
		want error
	}{{nil, Type1, ErrPD}, {foreign, Type1, ErrPD}, {pd, 0, ErrAccess}, {pd, 3, ErrAccess},
		{pd, Type1, nil}, {pd, Type2, nil}, {pd, Type2, nil}, {pd, Type1, ErrTooMany}} {
		if _, err := tab.AllocWindow(c.pd, c.typ); !errors.Is(err, c.want) {
			t.Errorf("%v: %v, want %v", c.typ, err, c.want)
		}
	}
	if _, err := tab.NextRKey(nil); !errors.Is(err, ErrPD) {
		t.Error(err)
	}
	if err := tab.FreeWindow(&Window{}); !errors.Is(err, ErrPD) {
		t.Error(err)
	}
	if s := Type1.String() + ", " + Type2.String() + ", " +
		WindowType(9).String(); s != "type 1, type 2B, unknown type 9" {
		t.Error(s)
	}
}

// Binding and invalidating are part of the data path and do not allocate.
func TestBindAllocatesNothing(t *testing.T) {
	r := newMWRig(t)
	w := r.window(Type2)
	var keys []Key
	for range maxOwnerKeys {
		keys = append(keys, r.key(w))
	}
	i := 0
	if n := testing.AllocsPerRun(maxOwnerKeys-1, func() {
		b := Bind{RKey: keys[i], LKey: r.m.LKey(), Addr: 0x1040, Len: 64, Access: RemoteRead}
		if r.tab.Bind(r.pd, r.s, &b) != nil || r.tab.InvalidateScope(r.pd, r.s, b.RKey) != nil {
			t.Fatal("bind or invalidate")
		}
		i++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	k := r.bind(r.to(w, RemoteRead))
	if n := testing.AllocsPerRun(100,
		func() { r.tab.CheckScope(r.pd, r.s, k, 0x1040, 8, RemoteRead) }); n != 0 {
		t.Errorf("%v allocations in a lookup", n)
	}
}
