package uverbs

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// ringAlign is the alignment of rings in the file, in bytes: pages of all architectures divide it.
const ringAlign = 64 << 10

// file is the memory of the rings of a context. The program maps parts of it by their offsets. It
// is sealed, so that the program cannot truncate it.
type file struct {
	fd int

	mu   sync.Mutex
	size int64           // bytes in use or free
	free map[int][]int64 // offsets of free parts by their size
	max  int64           // limit of size

	charge    func(n int) error // counts memory that is about to be used
	discharge func(n int)
}

func newFile(limit int64, charge func(n int) error, discharge func(n int)) (*file, error) {
	fd, err := unix.MemfdCreate("uverbs", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("uverbs: create the memory of rings: %w", err)
	}
	// Memory is allocated when it is first used.
	if err := unix.Ftruncate(fd, DoorbellOffset); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("uverbs: size of the memory of rings: %w: "+
			"remove the limit on the size of files (ulimit -f unlimited)", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("uverbs: seal the memory of rings: %w", err)
	}
	return &file{fd: fd, free: map[int][]int64{}, max: limit, charge: charge,
		discharge: discharge}, nil
}

// part is a mapped part of a file.
type part struct {
	mem []byte
	off int64
}

// alloc maps a part of n bytes, which are zero.
func (f *file) alloc(n int) (p part, err error) {
	size := (n + ringAlign - 1) &^ (ringAlign - 1)
	if err := f.charge(size); err != nil {
		return part{}, err
	}
	defer func() {
		if err != nil {
			f.discharge(size)
		}
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	var off int64
	if list := f.free[size]; len(list) > 0 {
		off = list[len(list)-1]
		f.free[size] = list[:len(list)-1]
	} else {
		if f.size+int64(size) > f.max {
			return part{}, unix.ENOMEM
		}
		off = f.size
		f.size += int64(size)
	}
	mem, err := unix.Mmap(f.fd, off, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		f.free[size] = append(f.free[size], off)
		return part{}, err
	}
	return part{mem, off}, nil
}

// release unmaps a part. Nothing may access its memory any more. The program may still have it
// mapped; if the part is used again, the program only harms its own ring.
func (f *file) release(p part) {
	size := (len(p.mem) + ringAlign - 1) &^ (ringAlign - 1)
	_ = unix.Munmap(p.mem)
	f.discharge(size)
	f.mu.Lock()
	defer f.mu.Unlock()
	_ = unix.Fallocate(f.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, p.off, int64(size))
	f.free[size] = append(f.free[size], p.off)
}

func (f *file) close() { _ = unix.Close(f.fd) }

// pageSize is the size of a page of memory in bytes.
var pageSize = uint64(os.Getpagesize())
