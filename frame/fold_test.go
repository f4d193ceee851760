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

// plainMask makes crcAVX512 compute an ordinary CRC-32: it sets only the start value.
var plainMask = headMask{xor: [64]byte{0xff, 0xff, 0xff, 0xff}}

func needAVX512(t testing.TB) {
	if !haveAVX512 {
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

// guarded returns pages of random bytes between two inaccessible pages.
func guarded(t *testing.T, pages int) []byte {
	t.Helper()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, (pages+2)*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
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

// The result equals hash/crc32 for every length and alignment.
func TestAVX512MatchesCRC32(t *testing.T) {
	needAVX512(t)
	b := randomBytes(9000 + 64)
	for n := 4; n <= 9000; n++ {
		for _, at := range []int{0, n % 64, n * 7 % 64} {
			if got, want := crcAVX512(foldConstants, &plainMask, &b[at], n, nil,
				0), crc32.ChecksumIEEE(b[at:at+n]); got != want {
				t.Fatalf("%d bytes at %d: %#08x, want %#08x", n, at, got, want)
			}
		}
	}
	for at := range 64 {
		for _, n := range []int{4, 44, 63, 64, 65, 120, 255, 256, 257, 511, 512, 1068, 4140} {
			if got, want := crcAVX512(foldConstants, &plainMask, &b[at], n, nil,
				0), crc32.ChecksumIEEE(b[at:at+n]); got != want {
				t.Fatalf("%d bytes at %d: %#08x, want %#08x", n, at, got, want)
			}
		}
	}
}

// FinishWith gives the same frame as a copy followed by Finish for any position, changes no other
// bytes and reads only src.
func TestFinishWith(t *testing.T) {
	mem := guarded(t, 3)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 4000 {
		a := &Address{Src: bth.GIDFromIPv4([4]byte{10, 0, 0, 1}),
			Dst: bth.GIDFromIPv4([4]byte{10, 0, 0, 2}), VLAN: uint16(i & 2)}
		if i&1 != 0 {
			a.Src[0], a.Dst[0] = 0xfd, 0xfd
			a.Src[10], a.Dst[10] = 1, 1
		}
		src := mem[:1+r.IntN(5000)]
		if i&4 != 0 {
			src = mem[len(mem)-len(src):]
		}
		before, after, start := r.IntN(300), r.IntN(300), r.IntN(64)
		buf, want := make([]byte, 8192), make([]byte, 8192)
		f := buf[start:]
		netLen := PutHeaders(f, a)
		at := netLen + bth.HeaderLen + before
		f = f[:at+len(src)+after+bth.ICRCLen]
		copy(want, buf)
		copy(want[start+at:], src)
		var e, e2 Encoder
		e.Finish(want[start:start+len(f)], netLen)
		e2.FinishWith(f, netLen, at, src)
		if !bytes.Equal(buf, want) {
			t.Fatalf("%d bytes at %d of a frame of %d: FinishWith and Finish differ", len(src), at,
				len(f))
		}
		var d Decoder
		if got := d.Decode(f, new(bth.Packet)); got == ReasonICRC {
			t.Fatalf("%d bytes at %d of a frame of %d: Decode() = %v", len(src), at, len(f), got)
		}
	}
}

// Every single bit contributes correctly to the result.
func TestAVX512EveryBit(t *testing.T) {
	needAVX512(t)
	for _, n := range []int{40, 256, 300, 1100} {
		b := make([]byte, n)
		for i := range 8 * n {
			b[i/8] = 1 << (i % 8)
			if got, want := crcAVX512(foldConstants, &headMask{}, &b[0], n, nil,
				0), crc32.Update(zeroRegister, crc32.IEEETable, b); got != want {
				t.Fatalf("%d bytes, bit %d: %#08x, want %#08x", n, i, got, want)
			}
			b[i/8] = 0
		}
	}
}

// No byte outside the packet is read, even at the edge of a mapping.
func TestAVX512Bounds(t *testing.T) {
	needAVX512(t)
	b := guarded(t, 2)
	for n := 4; n <= 700; n++ {
		for _, p := range [][]byte{b[:n], b[len(b)-n:]} {
			if got, want := crcAVX512(foldConstants, &plainMask, &p[0], n, nil,
				0), crc32.ChecksumIEEE(p); got != want {
				t.Fatalf("%d bytes: %#08x, want %#08x", n, got, want)
			}
		}
	}
}

// times multiplies two polynomials modulo P by long multiplication. Bit i is the coefficient of
// x^i.
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

// power returns x^n mod P.
func power(n int) uint32 {
	v := uint32(1)
	for range n {
		v = times(v, 2)
	}
	return v
}

// The constants are the right powers of x, computed in a different way: each moves by the expected
// distance.
func TestFoldTable(t *testing.T) {
	needAVX512(t)
	pair := func(name string, k [2]uint64, d int) {
		for i, extra := range []int{63, -1} {
			got, e := bits.Reverse32(uint32(k[i]>>32)), d+extra
			if uint32(k[i]) != 0 {
				t.Errorf("%s: constant %d has more than 32 bits: %#x", name, i, k[i])
			}
			want := uint32(1)
			if e < 0 {
				got = times(got, power(-e)) // x^e * x^-e = 1
			} else {
				want = power(e)
			}
			if got != want {
				t.Errorf("%s: constant %d does not move by %d", name, i, d)
			}
		}
	}
	for part := range 4 {
		pair("step", foldConstants.step[part], 4*512)
		for reg := range 4 {
			pair("last", foldConstants.last[reg][part], 32+8*(256-(reg*64+part*16+16)))
		}
	}
	for i := range 256 {
		pair(fmt.Sprint("undo ", i), foldConstants.undo[i], -8*i)
		if int(foldConstants.index[i]) != i {
			t.Errorf("index[%d] = %d", i, foldConstants.index[i])
		}
	}
	if got := bits.Reverse32(uint32(foldConstants.x64[0] >> 32)); got != power(63) {
		t.Errorf("x64 = %#x, want x^63", got)
	}
	// mu*P is x^64 plus a remainder of less than 33 bits.
	mu, p := bits.Reverse64(foldConstants.mu[0])>>31, bits.Reverse64(foldConstants.p[0])>>31
	if p != uint64(bits.Reverse32(crc32.IEEE))|1<<32 {
		t.Errorf("P = %#x", p)
	}
	var hi, lo uint64
	for i := range 33 {
		if mu>>i&1 != 0 {
			lo ^= p << i
			hi ^= p >> (64 - i) // 0 for i = 0
		}
	}
	if hi != 1 || lo>>32 != 0 {
		t.Errorf("mu*P = %#x, %#x", hi, lo)
	}
}

// The implementations of the CRC, with and without a copy of the bytes.
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
		head := make([]byte, 54) // headers of a frame; the ICRC follows n
		copy(head, buf)
		var e Encoder
		f := to[:54+n+bth.ICRCLen]
		run("copy+Finish", func() { copy(f, head); copy(f[54:], buf[:n]); e.Finish(f, 42) })
		run("FinishWith", func() { copy(f, head); e.FinishWith(f, 42, 54, buf[:n]) })
		if haveAVX512 {
			run("avx512", func() { crcAVX512(foldConstants, &plainMask, &buf[14], n, nil, 0) })
			run("copy+avx512", func() {
				copy(to, buf[14:14+n])
				crcAVX512(foldConstants, &plainMask,
					&to[0], n, nil, 0)
			})
		}
	}
}
