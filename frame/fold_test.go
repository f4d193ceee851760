package frame

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"math/bits"
	"math/rand/v2"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
)

// plainMask makes sumWide an ordinary CRC-32: the start value alone.
var plainMask = headMask{xor: [64]byte{0xff, 0xff, 0xff, 0xff}}

func needWide(t testing.TB) {
	if !wideHere {
		t.Skip("this processor has no AVX-512 with VPCLMULQDQ")
	}
}

func randomBytes(n int) []byte {
	r, b := rand.New(rand.NewPCG(1, 2)), make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// fenced returns pages of random bytes between two that may not be read.
func fenced(t *testing.T, pages int) []byte {
	t.Helper()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, (pages+2)*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	copy(mem, randomBytes(len(mem)))
	for _, p := range []int{0, pages + 1} {
		if err := unix.Mprotect(mem[p*page:(p+1)*page], unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	return mem[page : (pages+1)*page]
}

// Every length and every place in a cache line give what hash/crc32 gives.
func TestWideIsCRC32(t *testing.T) {
	needWide(t)
	b := randomBytes(9000 + 64)
	for n := 4; n <= 9000; n++ {
		for _, at := range []int{0, n % 64, n * 7 % 64} {
			if got, want := sumWide(folding, &plainMask, &b[at], n, nil, 0), crc32.ChecksumIEEE(b[at:at+n]); got != want {
				t.Fatalf("%d bytes at %d: %#08x, want %#08x", n, at, got, want)
			}
		}
	}
	for at := range 64 {
		for _, n := range []int{4, 44, 63, 64, 65, 120, 255, 256, 257, 511, 512, 1068, 4140} {
			if got, want := sumWide(folding, &plainMask, &b[at], n, nil, 0), crc32.ChecksumIEEE(b[at:at+n]); got != want {
				t.Fatalf("%d bytes at %d: %#08x, want %#08x", n, at, got, want)
			}
		}
	}
}

// A frame that is filled while it is summed is the frame that is filled first, whatever lies where; bytes around it stay, and nothing before or
// behind the source is read.
func TestFinishWith(t *testing.T) {
	room := fenced(t, 3)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 4000 {
		a := &Address{Src: bth.GIDFromIPv4([4]byte{10, 0, 0, 1}), Dst: bth.GIDFromIPv4([4]byte{10, 0, 0, 2}), VLAN: uint16(i & 2)}
		if i&1 != 0 {
			a.Src[0], a.Dst[0] = 0xfd, 0xfd
			a.Src[10], a.Dst[10] = 1, 1
		}
		src := room[:1+r.IntN(5000)]
		if i&4 != 0 {
			src = room[len(room)-len(src):]
		}
		before, behind, start := r.IntN(300), r.IntN(300), r.IntN(64)
		buf, want := make([]byte, 8192), make([]byte, 8192)
		f := buf[start:]
		netLen := PutHeaders(f, a)
		at := netLen + bth.HeaderLen + before
		f = f[:at+len(src)+behind+bth.ICRCLen]
		copy(want, buf)
		copy(want[start+at:], src)
		var e, e2 Encoder
		e.Finish(want[start:start+len(f)], netLen)
		e2.FinishWith(f, netLen, at, src)
		if !bytes.Equal(buf, want) {
			t.Fatalf("%d bytes at %d of a frame of %d: they differ", len(src), at, len(f))
		}
		var d Decoder
		if got := d.Decode(f, new(bth.Packet)); got == ReasonICRC {
			t.Fatalf("%d bytes at %d of a frame of %d: %v", len(src), at, len(f), got)
		}
	}
}

// Single bits: each alone reaches the result as it should, so no part of a register is forgotten or moved too far.
func TestWideEveryBit(t *testing.T) {
	needWide(t)
	for _, n := range []int{40, 256, 300, 1100} {
		b := make([]byte, n)
		for i := range 8 * n {
			b[i/8] = 1 << (i % 8)
			if got, want := sumWide(folding, &headMask{}, &b[0], n, nil, 0), crc32.Update(zeroRegister, crc32.IEEETable, b); got != want {
				t.Fatalf("%d bytes, bit %d: %#08x, want %#08x", n, i, got, want)
			}
			b[i/8] = 0
		}
	}
}

// Nothing before or behind the packet is read: it lies at either end of a mapping, between pages that may not be read.
func TestWideStaysInside(t *testing.T) {
	needWide(t)
	b := fenced(t, 2)
	for n := 4; n <= 700; n++ {
		for _, p := range [][]byte{b[:n], b[len(b)-n:]} {
			if got, want := sumWide(folding, &plainMask, &p[0], n, nil, 0), crc32.ChecksumIEEE(p); got != want {
				t.Fatalf("%d bytes: %#08x, want %#08x", n, got, want)
			}
		}
	}
}

// times multiplies two polynomials modulo P by the book: bit i stands for x^i.
func times(a, b uint32) uint32 {
	p, product := uint64(bits.Reverse32(crc32.IEEE))|1<<32, uint64(0)
	for i := range 32 {
		product ^= uint64(a) << i * uint64(b>>i&1)
	}
	for i := 63; i >= 32; i-- {
		if product>>i&1 != 0 {
			product ^= p << (i - 32)
		}
	}
	return uint32(product)
}

// power is x^n mod P.
func power(n int) uint32 {
	v := uint32(1)
	for range n {
		v = times(v, 2)
	}
	return v
}

// The constants are the powers of x that they should be, found in another way: each moves by the distance that it stands for.
func TestFoldTable(t *testing.T) {
	needWide(t)
	pair := func(name string, k [2]uint64, d int) {
		for i, extra := range []int{63, -1} {
			got, e := bits.Reverse32(uint32(k[i]>>32)), d+extra
			if uint32(k[i]) != 0 {
				t.Errorf("%s: constant %d has more than 32 bits: %#x", name, i, k[i])
			}
			want := uint32(1)
			if e < 0 {
				got = times(got, power(-e)) // x^e times x^-e is 1
			} else {
				want = power(e)
			}
			if got != want {
				t.Errorf("%s: constant %d does not move by %d", name, i, d)
			}
		}
	}
	for part := range 4 {
		pair("step", folding.step[part], 4*512)
		for reg := range 4 {
			pair("last", folding.last[reg][part], 32+8*(256-(reg*64+part*16+16)))
		}
	}
	for i := range 256 {
		pair(fmt.Sprint("back ", i), folding.back[i], -8*i)
		if int(folding.place[i]) != i {
			t.Errorf("place %d is %d", i, folding.place[i])
		}
	}
	if got := bits.Reverse32(uint32(folding.x64[0] >> 32)); got != power(63) {
		t.Errorf("x64 is %#x, want x^63", got)
	}
	// mu*P is x^64, but for a remainder of less than 33 bits.
	mu, p := bits.Reverse64(folding.mu[0])>>31, bits.Reverse64(folding.p[0])>>31
	if p != uint64(bits.Reverse32(crc32.IEEE))|1<<32 {
		t.Errorf("P is %#x", p)
	}
	var hi, lo uint64
	for i := range 33 {
		if mu>>i&1 != 0 {
			lo ^= p << i
			hi ^= p >> (64 - i) // 0 for i = 0
		}
	}
	if hi != 1 || lo>>32 != 0 {
		t.Errorf("mu*P is %#x and %#x", hi, lo)
	}
}

// Two runs of hash/crc32, as far as they go, beside the one run, and a copy in its caches to compare with.
func BenchmarkCRC(b *testing.B) {
	buf, to := randomBytes(8192), make([]byte, 8192)
	for _, n := range []int{44, 120, 256, 1068, 4140} {
		run := func(name string, f func()) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					f()
				}
			})
		}
		run("stdlib", func() { crc32.ChecksumIEEE(buf[14 : 14+n]) })
		run("copy+stdlib", func() { copy(to, buf[14:14+n]); crc32.ChecksumIEEE(to[:n]) })
		head := make([]byte, 54) // a frame's headers, with the ICRC behind n
		copy(head, buf)
		var e Encoder
		f := to[:54+n+bth.ICRCLen]
		run("copy+Finish", func() { copy(f, head); copy(f[54:], buf[:n]); e.Finish(f, 42) })
		run("FinishWith", func() { copy(f, head); e.FinishWith(f, 42, 54, buf[:n]) })
		if wideHere {
			run("wide", func() { sumWide(folding, &plainMask, &buf[14], n, nil, 0) })
			run("copy+wide", func() { copy(to, buf[14:14+n]); sumWide(folding, &plainMask, &to[0], n, nil, 0) })
		}
	}
}
