package mr

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// Copies of several pieces are complete.
func TestCopyLong(t *testing.T) {
	random := rand.NewChaCha8([32]byte{1})
	for _, n := range []int{1023, 1024, 1025, 1032, 2048, 2056, 4096, 4103, 70_000} {
		src := words(n + 8)
		_, _ = random.Read(src)
		for _, f := range []func(dst, src []byte){CopyIn, CopyOut} {
			dst := words(n + 8)
			if f(dst[:n], src[3:n+3]); !bytes.Equal(dst[:n], src[3:n+3]) || dst[n] != 0 {
				t.Errorf("a copy of %d bytes is wrong", n)
			}
		}
	}
}

// CopyIn and CopyOut copy exactly the right bytes, for every alignment and every length up to 40.
func TestCopiesAreExact(t *testing.T) {
	src := words(64)
	for i := range src {
		src[i] = byte(i) + 1
	}
	for at := range 8 {
		for from := range 8 {
			for n := range 41 {
				mem := words(64)
				want := bytes.Clone(mem)
				copy(want[at:at+n], src[from:])
				CopyIn(mem[at:at+n], src[from:from+n])
				if !bytes.Equal(mem, want) {
					t.Fatalf("CopyIn %d bytes from %d to %d: %v", n, from, at, mem)
				}
				out := words(64)
				clear(want)
				copy(want[from:], mem[at:at+n])
				CopyOut(out[from:from+n], mem[at:at+n])
				if !bytes.Equal(out, want) {
					t.Fatalf("CopyOut %d bytes from %d to %d: %v", n, at, from, out)
				}
			}
		}
	}
	// The shorter length counts.
	dst := words(16)
	CopyIn(dst[:8], src[:3])
	CopyIn(dst[8:11], src)
	if !bytes.Equal(dst[:12], []byte{1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 3, 0}) {
		t.Errorf("unequal lengths: %v", dst)
	}
}

func TestAccessors(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(24), 0, allRemote|ZeroBased)
	m.Store64(8, 0x1122334455667788)
	if m.Load64(8) != 0x1122334455667788 || m.Load64(0) != 0 || m.Load64(16) != 0 {
		t.Errorf("Store64: % x", m.Bytes())
	}
	if got := m.Add64(8, 2); got != 0x112233445566778a {
		t.Errorf("Add64 returned %#x", got)
	}
	if m.CompareAndSwap64(8, 5, 6) || !m.CompareAndSwap64(8, 0x112233445566778a, 6) ||
		m.Load64(8) != 6 {
		t.Error("CompareAndSwap64")
	}
	m.Store32(4, 0xcafebabe)
	if m.Load32(4) != 0xcafebabe || m.Load32(0) != 0 || m.Load64(8) != 6 {
		t.Errorf("Store32: % x", m.Bytes())
	}
	for off := range 24 {
		m.Store8(off, byte(100+off))
	}
	for off := range 24 {
		if m.Load8(off) != byte(100+off) || m.Bytes()[off] != byte(100+off) {
			t.Errorf("byte %d is %d", off, m.Load8(off))
		}
	}
	odd := register(t, tab, pd, words(32)[1:], 0, LocalWrite)
	for name, f := range map[string]func(){
		"beyond the end":      func() { m.Load8(24) },
		"before the start":    func() { m.Store8(-1, 0) },
		"word across the end": func() { m.Load64(20) },
		"odd word":            func() { m.Load64(4) },
		"odd memory":          func() { odd.Store64(0, 1) },
		"odd half word":       func() { m.Load32(2) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAtomicsReturnTheOldValue(t *testing.T) {
	b := words(16)
	if old := FetchAdd(b, 5); old != 0 {
		t.Errorf("FetchAdd returned %d", old)
	}
	if old := FetchAdd(b, ^uint64(0)); old != 5 {
		t.Errorf("FetchAdd returned %d", old)
	}
	if old := CompareSwap(b, 3, 9); old != 4 {
		t.Errorf("a failing CMP_SWAP returned %d", old)
	}
	if old := CompareSwap(b, 4, 9); old != 4 {
		t.Errorf("CMP_SWAP returned %d", old)
	}
	if old := FetchAdd(b, 0); old != 9 || !bytes.Equal(b[8:], make([]byte, 8)) {
		t.Errorf("finally %d, % x", old, b)
	}
}

// A peer's atomics and the program's use one counter without losing an increment.
func TestAtomicsAreExact(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(16), 0, allRemote|ZeroBased)
	const each = 50_000
	word := m.Bytes()[8:16]
	var wg sync.WaitGroup
	for _, f := range []func(){
		func() { FetchAdd(word, 1) },
		func() { m.Add64(8, 1) },
		func() {
			for old := m.Load64(8); !m.CompareAndSwap64(8, old, old+1); old = m.Load64(8) {
			}
		},
		func() {
			for {
				if old := m.Load64(8); CompareSwap(word, old, old+1) == old {
					return
				}
			}
		},
	} {
		wg.Go(func() {
			for range each {
				f()
			}
		})
	}
	wg.Wait()
	if got := m.Load64(8); got != 4*each || m.Load64(0) != 0 {
		t.Errorf("the counter shows %d, want %d", got, 4*each)
	}
}

// Eight bytes of two words have eight writers, which use every way to write a byte. Each finds its
// own byte unchanged.
func TestNeighboringBytes(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(8), 0, LocalWrite)
	var wg sync.WaitGroup
	for off := range 8 {
		wg.Go(func() {
			for i := range 20_000 {
				v := byte(i)
				if off%2 == 0 {
					m.Store8(off, v)
				} else {
					CopyIn(m.Bytes()[off:off+1], []byte{v})
				}
				if got := m.Load8(off); got != v {
					t.Errorf("byte %d: wrote %d, read %d", off, v, got)
					return
				}
			}
		})
	}
	wg.Wait()
}

// A region can end within a word. The bytes after it may belong to code that uses plain stores;
// none of those stores is lost.
func TestBytesAfterRegion(t *testing.T) {
	mem := words(16)
	region, before, behind := mem[5:7], mem[:5], mem[7:]
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		for v := byte(0); !stop.Load(); v++ {
			CopyIn(region, []byte{v, ^v})
			if region[0] != v || region[1] != ^v {
				t.Errorf("region: % x, want %x and its complement", region, v)
				return
			}
		}
	})
	for i := range 100_000 {
		for k := range before {
			before[k] = byte(i + k)
		}
		for k := range behind {
			behind[k] = byte(i - k)
		}
		for k, v := range before {
			if v != byte(i+k) {
				t.Fatalf("round %d: byte %d before the region is %d", i, k, v)
			}
		}
		for k, v := range behind {
			if v != byte(i-k) {
				t.Fatalf("round %d: byte %d after the region is %d", i, k, v)
			}
		}
	}
	stop.Store(true)
	wg.Wait()
}

// A peer's WRITE of data and a status byte arrives by CopyIn. The program polls the status with
// Load8 and then reads the data with plain loads. The program answers in the same way, and the
// device reads the answer with CopyOut. The test covers every length and alignment of the tail and
// must be clean under the race detector.
func TestStatusByte(t *testing.T) {
	for _, size := range []int{1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 63, 64, 200} {
		for at := range 8 {
			t.Run(fmt.Sprintf("%d at %d", size, at), func(t *testing.T) {
				tab, pd := newTable(t, Config{})
				in := register(t, tab, pd, words(256), 0, allRemote|ZeroBased)
				out := register(t, tab, pd, words(256), 0, allRemote|ZeroBased)
				statusByte(t, in, out, at, size)
			})
		}
	}
}

func statusByte(t *testing.T, in, out *MR, at, size int) {
	const rounds = 100
	tail := at + size - 1
	done := make(chan struct{})
	go func() { // the peer, through the device
		defer close(done)
		packet, answer := make([]byte, size), make([]byte, size)
		for r := byte(1); r <= rounds; r++ {
			for i := range packet {
				packet[i] = r
			}
			CopyIn(in.Bytes()[at:at+size], packet)
			for answer[size-1] != r { // READ until the status shows
				CopyOut(answer, out.Bytes()[at:at+size])
				runtime.Gosched()
			}
			for i, v := range answer {
				if v != r {
					t.Errorf("round %d: READ shows its status before byte %d (%d)", r, i, v)
					return
				}
			}
		}
	}()
	for r := byte(1); r <= rounds; r++ {
		for in.Load8(tail) != r {
			runtime.Gosched()
			select {
			case <-done:
				return
			default:
			}
		}
		for i, v := range in.Bytes()[at:tail] {
			if v != r {
				t.Errorf("round %d: the status came before byte %d (%d)", r, i, v)
			}
		}
		answer := out.Bytes()[at:tail]
		for i := range answer {
			answer[i] = r // plain stores, published by the next
		}
		out.Store8(tail, r)
	}
	<-done
}

// One WRITE writes data and another a flag: a program that sees the flag sees the data. The flag
// lies elsewhere, alone or within a word of others.
func TestFlagAfterData(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(1024+16), 0, allRemote|ZeroBased)
	for _, flag := range []int{1024, 1027, 1030, 1039} {
		const rounds = 200
		var read atomic.Int32 // what the program has read, reported separately
		done := make(chan struct{})
		go func() {
			defer close(done)
			data := make([]byte, 1000)
			for r := 1; r <= rounds; r++ {
				for i := range data {
					data[i] = byte(r)
				}
				CopyIn(m.Bytes()[3:1003], data)
				CopyIn(m.Bytes()[flag:flag+1], data[:1])
				for int(read.Load()) != r {
					runtime.Gosched()
				}
			}
		}()
		for r := 1; r <= rounds; r++ {
			for m.Load8(flag) != byte(r) {
				runtime.Gosched()
			}
			for i, v := range m.Bytes()[3:1003] {
				if v != byte(r) {
					t.Errorf("round %d: byte %d is %d", r, i, v)
				}
			}
			read.Store(int32(r))
		}
		<-done
	}
}

// One aligned word is written and read atomically by every pair of operations.
func TestWordsAreNotTorn(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(8), 0, allRemote|ZeroBased)
	b := m.Bytes()
	values := [2][]byte{bytes.Repeat([]byte{0}, 8), bytes.Repeat([]byte{0xff}, 8)}
	for _, size := range []int{8, 4, 2} {
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := 0; !stop.Load(); i++ {
				if i%2 == 0 {
					CopyIn(b[:size], values[i/2%2])
				} else if size == 8 {
					m.Store64(0, uint64(i/2%2)*^uint64(0))
				}
			}
		})
		got := make([]byte, 8)
		for range 50_000 {
			CopyOut(got[:size], b[:size])
			for _, v := range got[:size] {
				if v != got[0] {
					t.Fatalf("%d bytes torn: % x", size, got[:size])
				}
			}
			if v := m.Load64(0); size == 8 && v != 0 && v != ^uint64(0) {
				t.Fatalf("word torn: %#x", v)
			}
		}
		stop.Store(true)
		wg.Wait()
	}
}

// Two peers that write and read the same bytes concurrently are not an error of this program: the
// race detector reports nothing.
func TestConcurrentPeers(t *testing.T) {
	mem := words(256)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			buf := bytes.Repeat([]byte{byte(g + 1)}, 256)
			for range 2000 {
				at := r.IntN(256)
				n := r.IntN(257 - at)
				if g%2 == 0 {
					CopyIn(mem[at:at+n], buf[:n])
					continue
				}
				CopyOut(buf[:n], mem[at:at+n])
				for i, b := range buf[:n] {
					if b != 0 && b != 1 && b != 3 {
						t.Errorf("byte %d is %d, which no writer stored", at+i, b)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestNoAllocation(t *testing.T) {
	tab, pd := newTable(t, Config{})
	m := register(t, tab, pd, words(4096), 0, allRemote|ZeroBased|RemoteInvalidate)
	buf := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() {
		b, v := tab.CheckRemote(pd, m.RKey(), 8, 4000, RemoteWrite)
		c, w := tab.CheckLocal(pd, m.LKey(), 8, 4000, LocalWrite)
		_, x := tab.CheckRemote(pd, m.RKey()+1, 8, 4000, RemoteWrite)
		if v != OK || w != OK || x != BadKey {
			t.Fatal(v, w, x)
		}
		CopyIn(b, buf[:4000])
		CopyIn(b[:5], buf[:5])
		CopyOut(buf[:4000], c)
		FetchAdd(b[:8], 1)
		CompareSwap(b[:8], 1, 2)
		m.Store8(3, m.Load8(5))
		m.Store64(8, m.Load64(16))
		_ = tab.Invalidate(pd, m.RKey()+1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
