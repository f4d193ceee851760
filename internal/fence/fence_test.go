package fence

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/fence/litmus"
)

// A reader that sees the index sees the slot.
func TestStorePublishes(t *testing.T) {
	const rounds = 200_000
	var slots [64]uint64
	var head, tail atomic.Uint32
	end := time.Now().Add(20 * time.Second)
	var done sync.WaitGroup
	done.Go(func() {
		for i := uint32(0); i < rounds; i++ {
			for i-tail.Load() == uint32(len(slots)) {
				if time.Now().After(end) {
					return
				}
				runtime.Gosched()
			}
			slots[i%64] = uint64(i)
			Store(&head, i+1)
		}
	})
	for i := uint32(0); i < rounds; i++ {
		for head.Load() == i {
			if time.Now().After(end) {
				t.Fatalf("round %d was not published", i)
			}
			runtime.Gosched()
		}
		if got := slots[i%64]; got != uint64(i) {
			t.Fatalf("slot %d holds %d, want %d", i%64, got, i)
		}
		Store(&tail, i+1)
	}
	done.Wait()
}

// Dekker's pattern: each of two sides sets its own flag and then reads the other's. At least one of
// them must see the other's flag. Without Order this fails on amd64.
func TestOrder(t *testing.T) {
	var flagA, flagB atomic.Uint32
	var sawA, sawB uint32
	side := func(own, others *atomic.Uint32, saw *uint32) func(uint32) {
		return func(i uint32) {
			Store(own, i)
			Order()
			*saw = others.Load()
		}
	}
	litmus.Run(t, 50_000, side(&flagA, &flagB, &sawA), side(&flagB, &flagA, &sawB), func(i uint32) {
		if sawA != i && sawB != i {
			t.Fatalf("round %d: neither side saw the other's flag", i)
		}
	})
}

// A reader that sees the value of Store64 also sees all bytes written before it.
func TestStore64Publishes(t *testing.T) {
	type block struct {
		data [64]uint64
		word atomic.Uint64
	}
	var b block
	litmus.Run(t, 50_000, func(i uint32) {
		for k := range b.data {
			b.data[k] = uint64(i)
		}
		Store64(&b.word, uint64(i)<<32|uint64(i))
	}, func(i uint32) {
		for b.word.Load() != uint64(i)<<32|uint64(i) {
			runtime.Gosched()
		}
		for k, got := range b.data {
			if got != uint64(i) {
				t.Errorf("round %d: data[%d] is of round %d", i, k, got)
			}
		}
	}, func(uint32) {})
}

func TestNoAllocation(t *testing.T) {
	var v atomic.Uint32
	if n := testing.AllocsPerRun(100, func() { Store(&v, 1); Order() }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkStore(b *testing.B) {
	var v atomic.Uint32
	b.Run("atomic", func(b *testing.B) {
		for b.Loop() {
			v.Store(1)
		}
	})
	b.Run("release", func(b *testing.B) {
		for b.Loop() {
			Store(&v, 1)
		}
	})
	b.Run("order", func(b *testing.B) {
		for b.Loop() {
			Store(&v, 1)
			Order()
		}
	})
}
