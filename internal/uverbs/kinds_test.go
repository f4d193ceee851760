package uverbs

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/gorxe/gorxe/mr"
	"golang.org/x/sys/unix"
)

// Regions can be of any memory: huge pages, files, memory that processes share.
func TestMemoryKinds(t *testing.T) {
	const size, n = 4 << 20, 100_000
	a, b := connected(t, 2, n)
	file, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	memfd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(memfd)
	if err := unix.Ftruncate(memfd, size); err != nil {
		t.Fatal(err)
	}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	for _, c := range []struct {
		name        string
		fd          int
		prot, flags int
	}{
		{"huge pages", -1, rw, unix.MAP_PRIVATE | unix.MAP_ANONYMOUS},
		{"shared memory", -1, rw, unix.MAP_SHARED | unix.MAP_ANONYMOUS},
		{"shared file", int(file.Fd()), rw, unix.MAP_SHARED},
		{"private file", int(file.Fd()), rw, unix.MAP_PRIVATE},
		{"memfd", memfd, rw, unix.MAP_SHARED},
		{"file that is only read", int(file.Fd()), unix.PROT_READ, unix.MAP_SHARED},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem, err := unix.Mmap(c.fd, 0, size, c.prot, c.flags)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = unix.Munmap(mem) }()
			access := uint32(15)
			if c.prot != rw {
				access = 4 // remote read
			}
			if c.fd < 0 {
				_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
			}
			at := size/2 - n/2 // across two huge pages
			_, _, rkey := b.reg(b.pd, mem, access)
			addr := mr.AddrOf(mem) + uint64(at)
			if c.prot == rw {
				fill(a.mem, 5)
				a.post(a.sendWR(1, 0, sendSignaled, addr, uint64(rkey), n))
				want(t, a.wait(a.cring), 1, 0, 1)
				if !bytes.Equal(mem[at:at+n], a.mem) {
					t.Error("the memory of the peer differs after a WRITE")
				}
			}
			clear(a.mem)
			a.post(a.sendWR(2, 4, sendSignaled, addr, uint64(rkey), n))
			want(t, a.wait(a.cring), 2, 0, 2)
			if !bytes.Equal(mem[at:at+n], a.mem) {
				t.Error("a READ returns other bytes")
			}
		})
	}
	// What a WRITE stored in a shared mapping is in the file.
	fill(a.mem, 5)
	got := make([]byte, n)
	if _, err := file.ReadAt(got, size/2-n/2); err != nil || !bytes.Equal(got, a.mem) {
		t.Errorf("the file has other bytes, %v", err)
	}
}
