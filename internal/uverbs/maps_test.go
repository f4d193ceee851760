package uverbs

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/mr"
	"golang.org/x/sys/unix"
)

// REG_MR fails if a page of the range is missing, or may not be written although the region is
// writable.
func TestRegisterHoles(t *testing.T) {
	p := pair(t, testbed.Config{})[0]
	pd := p.pd()
	page := os.Getpagesize()
	mem, err := unix.Mmap(-1, 0, 8*page, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	base := mr.AddrOf(mem)
	register := func(first, n int, access uint32) error {
		a := base + uint64(first*page)
		_, _, no := p.try(cmdRegMR, enc(uint64(0), a, uint64(n*page), a, pd, access), 12, 0)
		if no != 0 {
			return no
		}
		return nil
	}
	const writable, readable = 1, 4 // LOCAL_WRITE, REMOTE_READ
	if err := register(0, 8, writable); err != nil {
		t.Errorf("REG_MR = %v, want success", err)
	}
	if err := unix.Mprotect(mem[2*page:3*page], unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	if err := register(0, 8, writable); err != unix.EFAULT {
		t.Errorf("writable REG_MR of a range with a read-only page = %v, want EFAULT", err)
	}
	if err := register(0, 8, readable); err != nil {
		t.Errorf("read-only REG_MR of a range with a read-only page = %v, want success", err)
	}
	if err := unix.Mprotect(mem[2*page:3*page], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	if err := register(0, 8, readable); err != unix.EFAULT {
		t.Errorf("REG_MR of a range with an inaccessible page = %v, want EFAULT", err)
	}
	s, err := openSpace(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for first := range uint64(8) {
		for n := uint64(1); first+n <= 8; n++ {
			at, length := base+first*uint64(page), n*uint64(page)
			if a, b := s.mapped(at, length, true), s.listed(at, length, true); a != b {
				t.Errorf("pages %d to %d: mapped() = %v, listed() = %v", first, first+n, a, b)
			}
		}
	}
	if err := unix.Munmap(mem); err != nil {
		t.Fatal(err)
	}
}

// A range may span mappings. Holes are found at each position of the chunks that are read.
func TestMapped(t *testing.T) {
	fd, err := unix.MemfdCreate("maps", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	const n, size, hole = 1000, 0x1000, 700
	var b strings.Builder
	for i := range n {
		if i != hole {
			fmt.Fprintf(&b, "%08x-%08x rw-p 00000000 00:00 0    /a/path\n", i*size, (i+1)*size)
		}
	}
	if _, err := unix.Write(fd, []byte(b.String())); err != nil {
		t.Fatal(err)
	}
	s := &space{maps: fd}
	for _, c := range []struct {
		first, last uint64 // pages
		want        bool
	}{
		{0, 1, true}, {0, hole, true}, {5, 400, true}, {0, hole + 1, false},
		{hole, hole + 1, false},
		{hole - 1, hole + 2, false}, {hole + 1, n, true}, {hole + 1, n + 1, false},
		{n + 10, n + 11, false},
	} {
		if got := s.mapped(c.first*size+8, (c.last-c.first)*size-8, true); got != c.want {
			t.Errorf("mapped(pages %d to %d) = %v, want %v", c.first, c.last, got, c.want)
		}
	}
}

func BenchmarkMapped(b *testing.B) {
	s, err := openSpace(os.Getpid())
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	mem := make([]byte, 1<<20)
	for b.Loop() {
		if !s.mapped(mr.AddrOf(mem), uint64(len(mem)), true) {
			b.Fatal("mapped() = false")
		}
	}
}
