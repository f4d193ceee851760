package mr

import (
	"errors"
	"sync"
	"testing"
)

func (r *mwRig) fast(n int) *FastMR {
	r.t.Helper()
	f, err := r.tab.AllocFastMR(r.pd, n)
	if err != nil {
		r.t.Fatal(err)
	}
	return f
}

func (r *mwRig) prepare(f *FastMR, mem []byte, a Access) *MR {
	r.t.Helper()
	m, err := r.tab.Prepare(f, mem, 0x1000, a)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *mwRig) local(m *MR, need Access, want Verdict) {
	r.t.Helper()
	if _, v := r.tab.CheckLocal(m.PD(), m.LKey(), m.Addr(), uint32(m.Len()), need); v != want {
		r.t.Fatalf("L_Key: %v, want %v", v, want)
	}
}

// IBA 10.6.6: one work request registers a fast MR and another ends it. Every registration has new
// keys.
func TestFastMR(t *testing.T) {
	r := newMWRig(t)
	f := r.fast(64)
	if f.Registered() != nil || f.Max() != 64 || f.PD() != r.pd {
		t.Fatal("a new fast MR")
	}
	m := r.prepare(f, words(64), LocalWrite|RemoteWrite)
	// Nothing works before REG_MR, but later work requests may already use the keys.
	r.local(m, 0, NotYet)
	r.local(m, LocalWrite, NotYet)
	if _, v := r.tab.CheckLocal(r.pd, m.LKey(), m.Addr(), 65, 0); v != Bounds {
		t.Fatalf("beyond the prepared range: %v", v)
	}
	pd2, _ := r.tab.AllocPD()
	if _, v := r.tab.CheckLocal(pd2, m.LKey(), m.Addr(), 1, 0); v != WrongPD {
		t.Fatalf("another PD: %v", v)
	}
	r.check(nil, m.RKey(), 0x1000, 8, RemoteWrite, BadKey)
	r.want("REG_MR in another PD", r.tab.RegisterFast(pd2, m.RKey()), ErrPD)
	r.want("REG_MR of an unknown key", r.tab.RegisterFast(r.pd, m.RKey()^1), ErrKey)
	r.want("REG_MR of a plain region",
		r.tab.RegisterFast(r.pd, register(t, r.tab, r.pd, words(8), 0, RemoteRead).RKey()), ErrKey)
	r.want("REG_MR of a window", r.tab.RegisterFast(r.pd, r.key(r.window(Type1))), ErrKey)
	r.want("REG_MR", r.tab.RegisterFast(r.pd, m.RKey()), nil)
	r.want("REG_MR twice", r.tab.RegisterFast(r.pd, m.RKey()), ErrKey)
	r.local(m, LocalWrite, OK)
	r.check(nil, m.RKey(), 0x1000, 64, RemoteWrite, OK)
	r.check(nil, m.RKey(), 0x1000, 64, RemoteRead, Denied)
	if f.Registered() != m || !m.Registered() || !m.RemoteLive() {
		t.Fatal("registered")
	}
	r.want("deregister", r.tab.Deregister(m), ErrAccess)

	// The next registration is prepared while this one is live, and waits for its end.
	m2 := r.prepare(f, words(32), RemoteRead)
	r.want("REG_MR of a live key", r.tab.RegisterFast(r.pd, m2.RKey()), ErrBusy)
	r.want("invalidate in another PD", r.tab.Invalidate(pd2, m.RKey()), ErrPD)
	r.want("invalidate", r.tab.Invalidate(r.pd, m.RKey()), nil)
	r.want("invalidate twice", r.tab.Invalidate(r.pd, m.RKey()), ErrKey)
	r.local(m, 0, BadKey) // both keys are invalid, unlike those of a plain region
	r.check(nil, m.RKey(), 0x1000, 8, RemoteWrite, BadKey)
	if f.Registered() != nil || m.Registered() {
		t.Fatal("invalidated")
	}
	r.want("REG_MR again", r.tab.RegisterFast(r.pd, m2.RKey()), nil)
	r.check(nil, m2.RKey(), 0x1000, 32, RemoteRead, OK)
	r.check(nil, m.RKey(), 0x1000, 8, RemoteWrite, BadKey)

	r.want("free", r.tab.FreeFastMR(f), nil)
	r.want("free twice", r.tab.FreeFastMR(f), ErrClosed)
	r.check(nil, m2.RKey(), 0x1000, 32, RemoteRead, BadKey)
	r.local(m2, 0, BadKey)
	_, err := r.tab.Prepare(f, words(8), 0, 0)
	r.want("prepare a freed fast MR", err, ErrClosed)
}

func TestPrepareRefuses(t *testing.T) {
	r := newMWRig(t)
	_, foreign := newTable(t, Config{})
	if _, err := r.tab.AllocFastMR(foreign, 8); !errors.Is(err, ErrPD) {
		t.Error(err)
	}
	if _, err := r.tab.AllocFastMR(r.pd, 0); !errors.Is(err, ErrLength) {
		t.Error(err)
	}
	f := r.fast(64)
	for _, c := range []struct {
		name string
		f    *FastMR
		n    int
		a    Access
		want error
	}{
		{"none", nil, 8, 0, ErrPD},
		{"no bytes", f, 0, 0, ErrLength},
		{"too many bytes", f, 65, 0, ErrLength},
		{"remote write alone", f, 8, RemoteWrite, ErrAccess},
		{"persistence", f, 8, FlushPersistent, ErrAccess},
	} {
		if _, err := r.tab.Prepare(c.f, words(c.n), 0, c.a); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	for range maxOwnerKeys {
		r.prepare(f, words(8), 0)
	}
	_, err := r.tab.Prepare(f, words(8), 0, 0)
	r.want("one too many", err, ErrTooMany)
	r.want("free", r.tab.FreeFastMR(f), nil)
	if r.tab.local.used != 1 {
		t.Errorf("%d L_Keys left, of one region", r.tab.local.used)
	}
}

// A fast MR with bound windows can neither be invalidated nor freed.
func TestWindowOnFastMR(t *testing.T) {
	r := newMWRig(t)
	f := r.fast(64)
	m := r.prepare(f, words(64), LocalWrite|MWBind)
	w := r.window(Type2)
	b := &Bind{RKey: r.key(w), LKey: m.LKey(), Addr: 0x1000, Len: 8, Access: RemoteRead}
	r.want("bind before REG_MR", r.tab.Bind(r.pd, r.s, b), ErrKey)
	r.want("REG_MR", r.tab.RegisterFast(r.pd, m.RKey()), nil)
	r.bind(b)
	r.check(nil, m.RKey(), 0x1000, 8, RemoteRead, Denied) // it has an R_Key, which grants nothing
	r.want("invalidate", r.tab.Invalidate(r.pd, m.RKey()), ErrBusy)
	r.want("free", r.tab.FreeFastMR(f), ErrBusy)
	r.check(r.s, b.RKey, 0x1000, 8, RemoteRead, OK)
	r.want("invalidate the window", r.tab.InvalidateScope(r.pd, r.s, b.RKey), nil)
	r.want("invalidate", r.tab.Invalidate(r.pd, m.RKey()), nil)
	r.want("free", r.tab.FreeFastMR(f), nil)
}

// FLUSH needs the access flag of its placement, for the range or the whole region (IBA annex A19).
// The persist function of the region makes it persistent.
func TestFlush(t *testing.T) {
	r := newMWRig(t)
	mem := words(64)
	var flushed []byte
	var fails error
	persist := func(b []byte) error { flushed = b; return fails }
	_, err := r.tab.Register(r.pd, mem, 0, FlushPersistent)
	r.want("persistence without a persist function", err, ErrAccess)
	_, err = r.tab.RegisterPersistent(r.pd, mem, 0, 0, nil)
	r.want("persistence without a persist function", err, ErrAccess)
	m, err := r.tab.RegisterPersistent(r.pd, mem, 0x1000, LocalWrite|MWBind|RemoteWrite|FlushGlobal,
		persist)
	r.want("register", err, nil)
	global := register(t, r.tab, r.pd, mem, 0x1000, FlushGlobal)
	const both = FlushGlobal | FlushPersistent
	for _, c := range []struct {
		name  string
		key   Key
		addr  uint64
		n     uint32
		whole bool
		need  Access
		want  Verdict
		bytes int // made persistent; -1: none
	}{
		{"range", m.RKey(), 0x1008, 8, false, FlushGlobal, OK, -1},
		{"range, persistent", m.RKey(), 0x1008, 8, false, FlushPersistent, OK, 8},
		{"range, both", m.RKey(), 0x1000, 64, false, both, OK, 64},
		{"whole region: address and length are ignored", m.RKey(), 0xbad, 1 << 31, true, both, OK,
			64},
		{"nothing", m.RKey(), 0x1000, 0, false, both, OK, -1},
		{"out of bounds", m.RKey(), 0x1008, 57, false, both, Bounds, -1},
		{"unknown key", m.RKey() ^ 1, 0x1008, 8, false, both, BadKey, -1},
		{"global only", global.RKey(), 0x1000, 8, false, FlushGlobal, OK, -1},
		{"not persistent", global.RKey(), 0x1000, 8, false, FlushPersistent, Denied, -1},
		{"not persistent, whole", global.RKey(), 0, 0, true, both, Denied, -1},
	} {
		flushed = nil
		if v := r.tab.Flush(r.pd, nil, c.key, c.addr, c.n, c.whole, c.need); v != c.want ||
			len(flushed) != max(c.bytes, 0) {
			t.Errorf("%s: %v with %d bytes made persistent, want %v with %d", c.name, v,
				len(flushed), c.want, c.bytes)
		}
	}
	if v := r.tab.Flush(r.pd, nil, m.RKey(), 0x1010, 8, false, FlushPersistent); v != OK ||
		&flushed[0] != &mem[16] {
		t.Error("other bytes were made persistent")
	}
	fails = errors.New("no")
	if v := r.tab.Flush(r.pd, nil, m.RKey(), 0x1010, 8, false, FlushPersistent); v != Failed {
		t.Errorf("persist fails: %v", v)
	}
	fails = nil

	// A window uses its own range and access flags, and the persist function of its region.
	w := r.window(Type2)
	k := r.bind(&Bind{RKey: r.key(w), LKey: m.LKey(), Addr: 0x1010, Len: 16,
		Access: FlushPersistent})
	if v := r.tab.Flush(r.pd, r.s, k, 0, 0, true, FlushPersistent); v != OK || len(flushed) != 16 ||
		&flushed[0] != &mem[16] {
		t.Errorf("through a window: %v, %d bytes", v, len(flushed))
	}
	if v := r.tab.Flush(r.pd, new(Scope), k, 0, 0, true, FlushPersistent); v != WrongQP {
		t.Errorf("another QP: %v", v)
	}
	pd2, _ := r.tab.AllocPD()
	if v := r.tab.Flush(pd2, r.s, m.RKey(), 0, 0, true, FlushGlobal); v != WrongPD {
		t.Errorf("another PD: %v", v)
	}
}

// Work requests on two threads run concurrently with the control plane: windows are bound,
// invalidated, freed and looked up, and their region is registered and deregistered. At the end
// every region can be deregistered.
func TestWindowsConcurrently(t *testing.T) {
	r := newMWRig(t)
	s := [2]*Scope{new(Scope), new(Scope)}
	const windows, rounds = 4, 400
	type job struct {
		bind Bind
		typ2 bool
	}
	jobs := [2]chan job{make(chan job, 8), make(chan job, 8)}
	var wg sync.WaitGroup
	for i := range jobs {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for j := range jobs[i] {
				if r.tab.Bind(r.pd, s[i], &j.bind) == nil {
					if b, v := r.tab.CheckScope(r.pd, s[i], j.bind.RKey, 0x1000, 8,
						RemoteRead); v == OK && len(b) != 8 {
						t.Errorf("%d bytes", len(b))
					}
					if j.typ2 {
						_ = r.tab.InvalidateScope(r.pd, s[i], j.bind.RKey)
					}
				}
			}
		}()
	}
	mem := words(64)
	m := register(t, r.tab, r.pd, mem, 0x1000, MWBind)
	var ws [windows]*Window
	for i := range ws {
		ws[i] = r.window(Type1 + WindowType(i%2))
	}
	for i := range rounds {
		w := ws[i%windows]
		if k, err := r.tab.NextRKey(w); err == nil {
			jobs[i/2%2] <- job{Bind{RKey: k, LKey: m.LKey(), Addr: 0x1000, Len: 64,
				Access: RemoteRead}, w.Type() == Type2}
		}
		if i%7 == 0 {
			r.want("free", r.tab.FreeWindow(w), nil)
			ws[i%windows] = r.window(w.Type())
		}
		if i%5 == 0 && r.tab.Deregister(m) == nil {
			m = register(t, r.tab, r.pd, mem, 0x1000, MWBind)
		}
	}
	for _, c := range jobs {
		close(c)
	}
	wg.Wait()
	for _, w := range ws {
		r.want("free", r.tab.FreeWindow(w), nil)
	}
	r.want("deregister", r.tab.Deregister(m), nil)
	r.want("deregister", r.tab.Deregister(r.m), nil)
	r.want("PD", r.tab.DeallocPD(r.pd), nil)
	if r.tab.remote.used != 0 || r.tab.local.used != 0 {
		t.Errorf("%d R_Keys and %d L_Keys left", r.tab.remote.used, r.tab.local.used)
	}
}
