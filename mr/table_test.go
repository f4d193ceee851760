package mr

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
)

func seeded(seed uint64) func() uint64 { return rand.New(rand.NewPCG(seed, 0)).Uint64 }

func newTable(t testing.TB, c Config) (*Table, *PD) {
	t.Helper()
	if c.Rand == nil {
		c.Rand = seeded(1)
	}
	tab, err := NewTable(c)
	if err != nil {
		t.Fatal(err)
	}
	pd, err := tab.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	return tab, pd
}

func register(t testing.TB, tab *Table, pd *PD, mem []byte, iova uint64, a Access) *MR {
	t.Helper()
	m, err := tab.Register(pd, mem, iova, a)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// words returns n bytes of 8-byte aligned memory.
func words(n int) []byte {
	b := make([]byte, n+8)
	skip := int(-AddrOf(b) & 7)
	return b[skip : skip+n : skip+n]
}

const allRemote = LocalWrite | RemoteWrite | RemoteRead | RemoteAtomic

func TestRegisterRefuses(t *testing.T) {
	tab, pd := newTable(t, Config{})
	foreign, otherPD := newTable(t, Config{})
	mem := words(64)
	for _, c := range []struct {
		name string
		pd   *PD
		mem  []byte
		iova uint64
		a    Access
		want error
	}{
		{"no PD", nil, mem, 0, 0, ErrPD},
		{"another table's PD", otherPD, mem, 0, 0, ErrPD},
		{"no bytes", pd, nil, 0, 0, ErrLength},
		{"zero length", pd, mem[:0], 0, 0, ErrLength},
		{"wraps", pd, mem, math.MaxUint64 - 62, 0, ErrLength},
		{"ends at 2^64", pd, mem, math.MaxUint64 - 63, 0, ErrLength},
		{"unknown right", pd, mem, 0, 1 << 7, ErrAccess},
		{"remote write needs local write", pd, mem, 0, RemoteWrite, ErrAccess},
		{"remote atomic needs local write", pd, mem, 0, RemoteAtomic, ErrAccess},
		{"atomic iova misaligned", pd, mem, 4, LocalWrite | RemoteAtomic, ErrAlign},
		{"atomic zero-based, odd memory", pd, mem[1:], 0, LocalWrite | RemoteAtomic | ZeroBased,
			ErrAlign},
	} {
		if m, err := tab.Register(c.pd, c.mem, c.iova, c.a); !errors.Is(err, c.want) || m != nil {
			t.Errorf("%s: %v, %v; want %v", c.name, m, err, c.want)
		}
	}
	if tab.MRs() != 0 || pd.Refs() != 0 || foreign.MRs() != 0 {
		t.Error("a failed registration left something behind")
	}
	// The last usable address is 2^64-2.
	register(t, tab, pd, mem, math.MaxUint64-64, LocalWrite)
}

func TestLimits(t *testing.T) {
	if _, err := NewTable(Config{}); !errors.Is(err, ErrConfig) {
		t.Errorf("no Rand: %v", err)
	}
	if _, err := NewTable(Config{Rand: seeded(1), MaxMR: LimitMaxMR + 1}); !errors.Is(err,
		ErrConfig) {
		t.Errorf("MaxMR too large: %v", err)
	}
	tab, pd := newTable(t, Config{MaxPD: 2, MaxMR: 3})
	pd2, err := tab.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tab.AllocPD(); !errors.Is(err, ErrTooMany) {
		t.Errorf("third PD: %v", err)
	}
	mem := words(8)
	var m *MR
	for range 3 {
		m = register(t, tab, pd, mem, 0, 0)
	}
	if _, err := tab.Register(pd, mem, 0, 0); !errors.Is(err, ErrTooMany) {
		t.Errorf("fourth MR: %v", err)
	}
	if err := tab.Deregister(m); err != nil {
		t.Fatal(err)
	}
	register(t, tab, pd2, mem, 0, 0)
}

func TestPDLifecycle(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(8), 0, 0)
	if err := tab.DeallocPD(pd); !errors.Is(err, ErrBusy) {
		t.Errorf("PD with an MR: %v", err)
	}
	if err := tab.Deregister(m); err != nil {
		t.Fatal(err)
	}
	if err := tab.Deregister(m); !errors.Is(err, ErrClosed) {
		t.Errorf("deregistered twice: %v", err)
	}
	if err := pd.Retain(); err != nil {
		t.Fatal(err)
	}
	if err := tab.DeallocPD(pd); !errors.Is(err, ErrBusy) {
		t.Errorf("PD with a QP: %v", err)
	}
	pd.Release()
	if err := tab.DeallocPD(pd); err != nil {
		t.Errorf("idle PD: %v", err)
	}
	if err := tab.DeallocPD(pd); !errors.Is(err, ErrClosed) {
		t.Errorf("deallocated twice: %v", err)
	}
	if err := pd.Retain(); !errors.Is(err, ErrClosed) {
		t.Errorf("retained after dealloc: %v", err)
	}
	if _, err := tab.Register(pd, words(8), 0, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("registered in a deallocated PD: %v", err)
	}
	if tab.PDs() != 0 || tab.MRs() != 0 {
		t.Errorf("%d PDs and %d MRs left", tab.PDs(), tab.MRs())
	}
}

func TestVerdicts(t *testing.T) {
	tab, pd := newTable(t, Config{})
	pd2, _ := tab.AllocPD()
	const iova = 0x7000_0000_0000
	mem := words(64)
	rw := register(t, tab, pd, mem, iova, allRemote)
	ro := register(t, tab, pd, mem, iova, RemoteRead)
	zero := register(t, tab, pd, mem, 12345, allRemote|ZeroBased)
	high := register(t, tab, pd, mem, math.MaxUint64-127, allRemote)
	local := register(t, tab, pd, mem, iova, LocalWrite)

	for _, c := range []struct {
		name string
		pd   *PD
		m    *MR
		addr uint64
		n    uint32
		need Access
		want Verdict
	}{
		{"all of it", pd, rw, iova, 64, RemoteWrite, OK},
		{"last byte", pd, rw, iova + 63, 1, RemoteRead, OK},
		{"nothing at its end", pd, rw, iova + 64, 0, RemoteRead, OK},
		{"one past its end", pd, rw, iova + 64, 1, RemoteRead, Bounds},
		{"one too long", pd, rw, iova + 1, 64, RemoteRead, Bounds},
		{"one before its start", pd, rw, iova - 1, 1, RemoteRead, Bounds},
		{"address zero", pd, rw, 0, 8, RemoteRead, Bounds},
		{"addr+n wraps", pd, rw, math.MaxUint64, 2, RemoteWrite, Bounds},
		{"addr+n wraps into it", pd, zero, math.MaxUint64 - 7, 16, RemoteWrite, Bounds},
		{"largest length", pd, rw, iova, math.MaxUint32, RemoteWrite, Bounds},
		{"largest length, wraps", pd, high, math.MaxUint64 - 127, math.MaxUint32, RemoteWrite,
			Bounds},
		{"high region", pd, high, math.MaxUint64 - 127, 64, RemoteWrite, OK},
		{"high region's far side", pd, high, 0, 1, RemoteWrite, Bounds},
		{"zero-based ignores iova", pd, zero, 0, 64, RemoteAtomic, OK},
		{"zero-based by iova", pd, zero, 12345, 1, RemoteRead, Bounds},
		{"other PD", pd2, rw, iova, 8, RemoteRead, WrongPD},
		{"read only, read", pd, ro, iova, 8, RemoteRead, OK},
		{"read only, write", pd, ro, iova, 8, RemoteWrite, Denied},
		{"read only, both", pd, ro, iova, 8, RemoteRead | RemoteWrite, Denied},
		{"read only, atomic", pd, ro, iova, 8, RemoteAtomic, Denied},
		{"no remote rights, no key", pd, local, iova, 8, RemoteRead, BadKey},
	} {
		b, v := tab.CheckRemote(c.pd, c.m.RKey(), c.addr, c.n, c.need)
		if v != c.want {
			t.Errorf("%s: %v, want %v", c.name, v, c.want)
		}
		if v != OK && b != nil {
			t.Errorf("%s: bytes returned with an error", c.name)
		}
		if v == OK && (len(b) != int(c.n) || cap(b) != int(c.n) || c.n > 0 &&
			&b[0] != &mem[c.addr-c.m.Addr()]) {
			t.Errorf("%s: not the bytes asked for", c.name)
		}
	}

	if _, v := tab.CheckLocal(pd, ro.LKey(), iova, 64, 0); v != OK {
		t.Errorf("local read: %v", v)
	}
	if _, v := tab.CheckLocal(pd, ro.LKey(), iova, 64, LocalWrite); v != Denied {
		t.Errorf("local write without the right: %v", v)
	}
	if _, v := tab.CheckLocal(pd2, rw.LKey(), iova, 64, 0); v != WrongPD {
		t.Errorf("local, other PD: %v", v)
	}
}

func TestKeyDomains(t *testing.T) {
	tab, pd := newTable(t, Config{})
	mem := words(8)
	seen := map[Key]bool{}
	for range 1000 {
		m := register(t, tab, pd, mem, 0, allRemote|ZeroBased)
		if m.LKey() == 0 || m.RKey() == 0 || seen[m.LKey()] || seen[m.RKey()] ||
			m.LKey() == m.RKey() {
			t.Fatalf("keys %#x, %#x: zero or repeated", m.LKey(), m.RKey())
		}
		seen[m.LKey()], seen[m.RKey()] = true, true
		if _, v := tab.CheckRemote(pd, m.LKey(), 0, 8, RemoteRead); v != BadKey {
			t.Fatalf("an L_Key passed as R_Key: %v", v)
		}
		if _, v := tab.CheckLocal(pd, m.RKey(), 0, 8, 0); v != BadKey {
			t.Fatalf("an R_Key passed as L_Key: %v", v)
		}
	}
	for _, check := range []func(*PD, Key, uint64, uint32, Access) ([]byte, Verdict){tab.CheckLocal,
		tab.CheckRemote} {
		if _, v := check(pd, 0, 0, 0, 0); v != BadKey {
			t.Errorf("key 0: %v", v)
		}
	}
}

// Programs of verbs may send the L_Key of a region to their peer.
func TestForeignKeys(t *testing.T) {
	tab, pd := newTable(t, Config{})
	mem := words(8)
	seen := map[Key]bool{}
	var all []*MR
	for range many(1 << 14) {
		m, err := tab.RegisterForeign(pd, mem, 0, allRemote, noBacking{})
		if err != nil {
			t.Fatal(err)
		}
		own := register(t, tab, pd, mem, 0, allRemote)
		all = append(all, m, own)
		if m.LKey() == 0 || m.LKey() != m.RKey() || seen[m.LKey()] || seen[own.RKey()] {
			t.Fatalf("keys %#x, %#x and %#x: zero, different or repeated", m.LKey(), m.RKey(),
				own.RKey())
		}
		seen[m.RKey()], seen[own.RKey()] = true, true
	}
	for _, m := range all {
		want := Foreign
		if m.LKey() != m.RKey() {
			want = OK
		}
		if _, v := tab.CheckRemote(pd, m.RKey(), 0, 8, RemoteRead); v != want {
			t.Fatalf("R_Key %#x: %v, want %v", m.RKey(), v, want)
		}
		if _, v := tab.CheckLocal(pd, m.LKey(), 0, 8, LocalWrite); v != want {
			t.Fatalf("L_Key %#x: %v, want %v", m.LKey(), v, want)
		}
	}
	for _, m := range all {
		if err := tab.Deregister(m); err != nil {
			t.Fatal(err)
		}
		if _, v := tab.CheckLocal(pd, m.LKey(), 0, 8, 0); v != BadKey {
			t.Fatalf("L_Key of a deregistered region: %v", v)
		}
	}
	if tab.local.used != 0 || tab.remote.used != 0 {
		t.Errorf("%d L_Keys and %d R_Keys left, want 0", tab.local.used, tab.remote.used)
	}

	m, err := tab.RegisterForeign(pd, mem, 0, LocalWrite, noBacking{})
	if err != nil {
		t.Fatal(err)
	}
	if m.RKey() != 0 {
		t.Errorf("a region without remote access has the R_Key %#x", m.RKey())
	}
}

type noBacking struct{}

func (noBacking) Load([]byte) bool          { return false }
func (noBacking) Store(_, _ []byte, _ bool) {}

func TestInvalidate(t *testing.T) {
	tab, pd := newTable(t, Config{})
	pd2, _ := tab.AllocPD()
	mem := words(8)
	m := register(t, tab, pd, mem, 0, RemoteRead|RemoteInvalidate)
	fixed := register(t, tab, pd, mem, 0, RemoteRead)

	for _, c := range []struct {
		name string
		pd   *PD
		key  Key
		want error
	}{
		{"unknown key", pd, m.RKey() ^ 1, ErrKey},
		{"an L_Key", pd, m.LKey(), ErrKey},
		{"other PD", pd2, m.RKey(), ErrPD},
		{"not allowed", pd, fixed.RKey(), ErrAccess},
		{"allowed", pd, m.RKey(), nil},
		{"twice", pd, m.RKey(), ErrKey},
	} {
		if err := tab.Invalidate(c.pd, c.key); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if _, v := tab.CheckRemote(pd, m.RKey(), 0, 1, RemoteRead); v != BadKey {
		t.Errorf("invalidated R_Key: %v", v)
	}
	if m.RemoteLive() || !m.Registered() {
		t.Error("invalidate ends the R_Key, not the region")
	}
	if _, v := tab.CheckLocal(pd, m.LKey(), m.Addr(), 1, 0); v != OK {
		t.Errorf("L_Key after invalidate: %v", v)
	}
	if err := tab.Deregister(m); err != nil || m.Registered() {
		t.Errorf("deregister after invalidate: %v", err)
	}
}
