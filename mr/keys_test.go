package mr

import (
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/gorxe/gorxe/internal/prefetch"
)

// many returns n, or less with the race detector, which is slow.
func many(n int) int {
	if raceEnabled {
		return n / 16
	}
	return n
}

// The permutation maps different counters to different keys, and depends on the secret.
func TestPermutation(t *testing.T) {
	var p, q permutation
	p.init(seeded(1))
	q.init(seeded(2))
	n := many(1 << 18)
	seen := make([]uint64, 1<<26)
	equalBit, low := 0, 0
	for c := range uint32(n) {
		k := p.at(c)
		if seen[k>>6]&(1<<(k&63)) != 0 {
			t.Fatalf("key %#x came twice", k)
		}
		seen[k>>6] |= 1 << (k & 63)
		if k == q.at(c) {
			equalBit++
		}
		if k < 1<<31 {
			low++
		}
	}
	if equalBit > 5 {
		t.Errorf("two secrets agree on %d of %d keys", equalBit, n)
	}
	if d := low - n/2; d*d > 25*n/4 { // 5 standard deviations
		t.Errorf("%d of %d keys in the lower half", low, n)
	}
}

// An invalid key stays invalid, and a million of them take no memory.
func TestStaleKeys(t *testing.T) {
	tab, pd := newTable(t, Config{})
	mem := words(64)
	live := register(t, tab, pd, mem, 0, allRemote)
	n := many(1 << 20)
	stale := make([]Key, 0, n)
	for range n {
		m := register(t, tab, pd, mem, 0, RemoteRead)
		stale = append(stale, m.RKey())
		if err := tab.Deregister(m); err != nil {
			t.Fatal(err)
		}
	}
	if size := tab.remote.cur.Load().capacity(); size != minBuckets*bucketSize {
		t.Errorf("the table grew to %d slots", size)
	}
	for range 10 { // new regions in the old slots
		register(t, tab, pd, mem, 0, allRemote)
	}
	for _, k := range stale {
		if _, v := tab.CheckRemote(pd, k, 0, 1, RemoteRead); v != BadKey {
			t.Fatalf("stale key %#x: %v", k, v)
		}
	}
	if _, v := tab.CheckRemote(pd, live.RKey(), 0, 1, RemoteRead); v != OK {
		t.Errorf("the live key: %v", v)
	}
}

// A peer that guesses a million keys finds none of a hundred.
func TestGuessing(t *testing.T) {
	tab, pd := newTable(t, Config{})
	for range 100 {
		register(t, tab, pd, words(64), 0, allRemote)
	}
	r := rand.New(rand.NewPCG(3, 3))
	for range many(1_000_000) {
		k := Key(r.Uint32())
		if _, v := tab.CheckRemote(pd, k, 0, 0, 0); v != BadKey {
			t.Fatalf("guessed R_Key %#x", k)
		}
		if _, v := tab.CheckLocal(pd, k, 0, 0, 0); v != BadKey {
			t.Fatalf("guessed L_Key %#x", k)
		}
	}
	// Values near a known key are no better guesses.
	b := *tab.remote.cur.Load()
	for i := range b {
		for j := range b[i].keys {
			for d := Key(1); d < 1000; d++ {
				if k := Key(b[i].keys[j].Load()); k != 0 {
					if _, v := tab.CheckRemote(pd, k+d, 0, 0, 0); v != BadKey {
						t.Fatalf("key %#x is near key %#x", k+d, k)
					}
				}
			}
		}
	}
}

func TestExhausted(t *testing.T) {
	tab, pd := newTable(t, Config{})
	mem := words(8)
	tab.remote.next = 1<<32 - 3
	for range 3 {
		m := register(t, tab, pd, mem, 0, RemoteRead)
		if err := tab.Deregister(m); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tab.Register(pd, mem, 0, RemoteRead); !errors.Is(err, ErrExhausted) {
		t.Errorf("after the last key: %v", err)
	}
	if tab.MRs() != 0 || pd.Refs() != 0 || tab.local.used != 0 {
		t.Error("the failed registration left something behind")
	}
	register(t, tab, pd, mem, 0, 0) // needs no R_Key
}

// A value that is live as one kind of key is not drawn for the other.
func TestDrawSkipsFullBuckets(t *testing.T) {
	tab, pd := newTable(t, Config{})
	next := tab.remote.perm.at(0)
	tab.local.insert(next, &MR{pd: pd, lkey: next})
	m := register(t, tab, pd, words(8), 0, RemoteRead)
	if m.RKey() == next || m.RKey() != tab.remote.perm.at(1) {
		t.Errorf("R_Key %#x, want the one after %#x", m.RKey(), next)
	}
}

// A bucket is a cache line, and a table that does not fit the nearest caches starts at the start of
// one. (Go puts a header before smaller memory with pointers.)
func TestBucketIsCacheLine(t *testing.T) {
	for n := 4 * nearBuckets; n <= 1<<16; n *= 2 {
		var x index
		x.cur.Store(newBuckets(n))
		b := *x.cur.Load()
		size, at := unsafe.Sizeof(b[0]), uintptr(unsafe.Pointer(&b[0]))
		if size != prefetch.Line || at%prefetch.Line != 0 {
			t.Errorf("%d buckets of %d bytes lie at %#x", n, size, at)
		}
	}
}

// More than 65,536 regions are all found, each only by its own key.
func TestManyRegions(t *testing.T) {
	tab, pd := newTable(t, Config{MaxMR: many(100_000)})
	mem := words(8)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	all := make([]*MR, many(65_536), many(100_000))
	for i := range all {
		all[i] = register(t, tab, pd, mem, uint64(i)*8, allRemote)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	t.Logf("%d bytes per MR, of which 8 are this test's",
		(after.HeapAlloc-before.HeapAlloc)/uint64(len(all)))
	for len(all) < cap(all) {
		all = append(all, register(t, tab, pd, mem, uint64(len(all))*8, allRemote))
	}
	if _, err := tab.Register(pd, mem, 0, 0); !errors.Is(err, ErrTooMany) {
		t.Errorf("one more: %v", err)
	}
	if drawn := tab.remote.next; drawn > uint64(len(all))*4/3 {
		t.Errorf("%d keys skipped for %d regions", drawn-uint64(len(all)), len(all))
	}
	for i, m := range all {
		if _, v := tab.CheckRemote(pd, m.RKey(), uint64(i)*8, 8, RemoteWrite); v != OK {
			t.Fatalf("region %d: %v", i, v)
		}
		if _, v := tab.CheckLocal(pd, m.LKey(), uint64(i)*8, 8, LocalWrite); v != OK {
			t.Fatalf("region %d: %v", i, v)
		}
	}
	for _, m := range all {
		if err := tab.Deregister(m); err != nil {
			t.Fatal(err)
		}
	}
	if tab.local.used != 0 || tab.remote.used != 0 || pd.Refs() != 0 {
		t.Errorf("%d L_Keys, %d R_Keys and %d references left, want 0", tab.local.used,
			tab.remote.used, pd.Refs())
	}
	b := *tab.remote.cur.Load()
	for i := range b {
		for j := range b[i].mrs {
			if b[i].mrs[j].Load() != nil {
				t.Fatal("the table keeps a deregistered region from being garbage collected")
			}
		}
	}
}

// Regions are registered and deregistered, tables grow and keys are invalidated while other threads
// check keys: a live key is always found, an invalid one never, and the result is the region's own
// memory.
func TestChecksDuringRegistration(t *testing.T) {
	tab, pd := newTable(t, Config{})
	const iova = 1 << 40
	steady := words(64)
	steady[0] = 77
	anchor := register(t, tab, pd, steady, iova, allRemote)

	type offer struct {
		m    *MR
		dead bool // set before the key is published: already deregistered
	}
	var current atomic.Pointer[offer]
	var stop atomic.Bool
	var checks, live atomic.Uint64
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for !stop.Load() {
				if b, v := tab.CheckRemote(pd, anchor.RKey(), iova, 64, RemoteRead); v != OK ||
					b[0] != 77 {
					t.Errorf("the permanent key: %v", v)
					return
				}
				runtime.Gosched()
				o := current.Load()
				if o == nil {
					continue
				}
				b, v := tab.CheckRemote(pd, o.m.RKey(), o.m.Addr(), 8, RemoteRead)
				switch {
				case o.dead && v != BadKey:
					t.Errorf("a deregistered key: %v", v)
					return
				case v == OK && &b[0] != &o.m.mem[0]:
					t.Error("a key gave access to another region's memory")
					return
				case v == OK:
					live.Add(1)
				}
				_ = tab.Invalidate(pd, o.m.RKey())
				checks.Add(1)
			}
		})
	}
	var crowd []*MR
	for i := range many(16_000) {
		a := RemoteRead
		if i%2 == 0 {
			a |= RemoteInvalidate
		}
		m := register(t, tab, pd, words(8), uint64(i), a)
		current.Store(&offer{m: m})
		if i%8 == 0 {
			crowd = append(crowd, m) // makes the table grow
			continue
		}
		if i%64 == 1 {
			runtime.Gosched()
		}
		if err := tab.Deregister(m); err != nil {
			t.Fatal(err)
		}
		current.Store(&offer{m: m, dead: true})
	}
	for checks.Load() < 1000 {
		runtime.Gosched()
	}
	stop.Store(true)
	wg.Wait()
	if live.Load() == 0 {
		t.Error("no check found a live region, so the test shows nothing")
	}
	if len(crowd)+1 != tab.MRs() {
		t.Errorf("%d regions left, want %d", tab.MRs(), len(crowd)+1)
	}
}
