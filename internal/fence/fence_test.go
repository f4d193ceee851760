package fence

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// litmus is how long tests go on that look for what may happen, with as many rounds as fit.
const litmus = 2 * time.Second

// Who sees the index sees the slot.
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
				t.Fatalf("round %d has not come", i)
			}
			runtime.Gosched()
		}
		if got := slots[i%64]; got != uint64(i) {
			t.Fatalf("slot %d holds %d", i, got)
		}
		Store(&tail, i+1)
	}
	done.Wait()
}

// dekker plays Dekker's pattern for as many rounds as fit: of two that set their own flag and then look at the other's, one at least has to
// see the other. A side sets its own to i, and tells what it sees of the other's.
func dekker(t *testing.T, rounds uint32, side, otherSide func(own, others *atomic.Uint32, i uint32) (saw uint32)) {
	t.Helper()
	var mine, yours, turn, ready atomic.Uint32
	var other uint32 // what the other side saw
	end := time.Now().Add(litmus)
	wait := func(v *atomic.Uint32, want uint32) bool {
		for n := 0; v.Load() != want; n++ {
			if n%1000 == 999 {
				if time.Now().After(end) {
					return false
				}
				runtime.Gosched()
			}
		}
		return true
	}
	var done sync.WaitGroup
	done.Go(func() {
		for i := uint32(1); i <= rounds && wait(&turn, i); i++ {
			other = otherSide(&yours, &mine, i)
			ready.Store(i)
		}
	})
	for i := uint32(1); i <= rounds; i++ {
		turn.Store(i)
		for range i % 64 { // meet at every distance
			_ = turn.Load()
		}
		saw := side(&mine, &yours, i)
		if !wait(&ready, i) {
			t.Logf("only %d rounds: the machine is busy", i)
			break
		}
		if saw != i && other != i {
			t.Fatalf("round %d: neither saw the other", i)
		}
	}
	turn.Store(0)
	done.Wait()
}

// The frequent side has no barrier; with the rare side's Heavy left out, this fails within a few thousand rounds on amd64.
func TestHeavyOrdersTheOther(t *testing.T) {
	if !Asymmetric() {
		t.Skip("this kernel has no membarrier: users fall back to atomic stores")
	}
	dekker(t, 20_000, func(own, others *atomic.Uint32, i uint32) uint32 {
		own.Store(i)
		Heavy()
		return others.Load()
	}, func(own, others *atomic.Uint32, i uint32) uint32 {
		Store(own, i)
		return others.Load()
	})
}

// Both sides alike: each has an Order between its store and its load. Without it, this fails within some ten thousand rounds on amd64.
func TestOrder(t *testing.T) {
	side := func(own, others *atomic.Uint32, i uint32) uint32 {
		Store(own, i)
		Order()
		return others.Load()
	}
	dekker(t, 50_000, side, side)
}

// A kernel that refuses, though it let the process register, costs time, not order.
func TestHeavyRefused(t *testing.T) {
	if !Asymmetric() {
		t.Skip("this kernel has no membarrier: users fall back to atomic stores")
	}
	refused()
	if Plain && !membarrier(privateExpedited) {
		t.Error("the process is not registered any more")
	}
}

// The same with 8 bytes: what was copied before is seen with the word behind it.
func TestStore64Publishes(t *testing.T) {
	const rounds = 50_000
	type block struct {
		data [64]uint64
		word atomic.Uint64
	}
	var b block
	var seen atomic.Uint64
	end := time.Now().Add(20 * time.Second)
	var done sync.WaitGroup
	done.Go(func() {
		for i := uint64(1); i <= rounds; i++ {
			for seen.Load() != i-1 {
				if time.Now().After(end) {
					return
				}
				runtime.Gosched()
			}
			for k := range b.data {
				b.data[k] = i
			}
			Store64(&b.word, i<<32|i)
		}
	})
	for i := uint64(1); i <= rounds; i++ {
		for b.word.Load() != i<<32|i {
			if time.Now().After(end) {
				t.Fatalf("round %d has not come", i)
			}
			runtime.Gosched()
		}
		for k, got := range b.data {
			if got != i {
				t.Fatalf("round %d: word %d is of round %d", i, k, got)
			}
		}
		seen.Store(i)
	}
	done.Wait()
}

func TestNoAllocation(t *testing.T) {
	var v atomic.Uint32
	if n := testing.AllocsPerRun(100, func() { Store(&v, 1); Order(); Heavy() }); n != 0 {
		t.Errorf("%v allocations", n)
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
	b.Run("heavy", func(b *testing.B) {
		for b.Loop() {
			Heavy()
		}
	})
}
