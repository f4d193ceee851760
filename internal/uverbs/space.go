package uverbs

import (
	"fmt"

	"github.com/gorxe/gorxe/mr"
	"golang.org/x/sys/unix"
)

const (
	maxDirty  = 256 // stores that are collected before they are written
	maxSpaces = 64  // processes that register memory with one context
)

// space is the address space of a program. It is accessed through /proc/PID/mem: the descriptor
// belongs to the address space, so after an exec or an exit, accesses fail, and they never reach
// another process that got the same PID. The loop's owner has the field dirty.
type space struct {
	fd    int
	maps  int // /proc/PID/maps
	dirty []store
}

// store is a piece of memory that waits to be written.
type store struct {
	b       []byte
	addr    uint64 // in the program
	ordered bool   // see mr.Backing
}

func openSpace(pid int) (*space, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("uverbs: open the memory of process %d: %w", pid, err)
	}
	maps, err := unix.Open(fmt.Sprintf("/proc/%d/maps", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("uverbs: open the memory map of process %d: %w", pid, err)
	}
	return &space{fd: fd, maps: maps}, nil
}

func (s *space) close() {
	_ = unix.Close(s.fd)
	_ = unix.Close(s.maps)
}

// read reads program memory.
func (s *space) read(b []byte, addr uint64) bool { return s.copy(unix.Pread, b, addr) }

// write writes program memory.
func (s *space) write(b []byte, addr uint64) bool { return s.copy(unix.Pwrite, b, addr) }

// copy copies b from or to program memory with unix.Pread or unix.Pwrite.
func (s *space) copy(access func(int, []byte, int64) (int, error), b []byte, addr uint64) bool {
	for len(b) > 0 {
		n, err := access(s.fd, b, int64(addr))
		if err == unix.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			return false
		}
		b, addr = b[n:], addr+uint64(n)
	}
	return true
}

// add collects a store. Packets of one message are usually contiguous and become one store.
func (s *space) add(b []byte, addr uint64, ordered bool) {
	if n := len(s.dirty); n > 0 {
		last := &s.dirty[n-1]
		if !last.ordered && last.addr+uint64(len(last.b)) == addr &&
			len(last.b)+len(b) <= cap(last.b) {
			last.b, last.ordered = last.b[:len(last.b)+len(b)], ordered
			return
		}
	}
	if len(s.dirty) == maxDirty {
		s.flush()
	}
	s.dirty = append(s.dirty, store{b, addr, ordered})
}

// flush writes the collected stores, in order. If the program has unmapped the memory, its bytes
// are lost, as with a NIC, whose pinned pages are not those of the program any more.
func (s *space) flush() {
	for i := range s.dirty {
		d := &s.dirty[i]
		head := len(d.b)
		if d.ordered {
			head -= lastWord(d.addr, len(d.b))
		}
		if head > 0 {
			s.write(d.b[:head], d.addr)
		}
		if head < len(d.b) {
			s.write(d.b[head:], d.addr+uint64(head))
		}
		*d = store{}
	}
	s.dirty = s.dirty[:0]
}

// lastWord returns the number of bytes of the last aligned word of a range: 8 or 4 for a whole
// word, otherwise those in the aligned 4 bytes of the last one.
func lastWord(addr uint64, n int) int {
	switch end := addr + uint64(n); {
	case end&7 == 0 && n >= 8:
		return 8
	case end&3 == 0 && n >= 4:
		return 4
	default:
		return min(int((end-1)&3)+1, n)
	}
}

// mirror is the local copy of the program memory of an MR. It implements mr.Backing.
type mirror struct {
	space *space
	dev   *Device
	pages []byte // the mapping
	mem   []byte // the region
	addr  uint64 // of the region in the program
	gone  bool   // the region was deregistered. Owner
}

// newMirror maps a copy that takes memory only where it is used. Its address equals that of the
// original modulo the size of a page.
func newMirror(d *Device, s *space, addr, n uint64) (*mirror, error) {
	lead := addr % pageSize
	pages, err := unix.Mmap(-1, 0, int(lead+n), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	return &mirror{space: s, dev: d, pages: pages, mem: pages[lead : lead+n : lead+n], addr: addr},
		nil
}

// at returns the address in the program of a part of the memory; false: it is other memory.
func (m *mirror) at(b []byte) (uint64, bool) {
	off := mr.AddrOf(b) - mr.AddrOf(m.mem)
	return m.addr + off, off < uint64(len(m.mem)) && uint64(len(b)) <= uint64(len(m.mem))-off
}

// Load implements mr.Backing.
func (m *mirror) Load(b []byte) bool {
	m.space.flush()
	addr, ok := m.at(b)
	return ok && m.space.read(b, addr)
}

// Store implements mr.Backing.
func (m *mirror) Store(b []byte, ordered bool) {
	addr, ok := m.at(b)
	if !ok || len(b) == 0 || m.gone {
		return
	}
	if len(m.space.dirty) == 0 {
		m.dev.dirty = append(m.dev.dirty, m.space)
	}
	m.space.add(m.mem[addr-m.addr:][:len(b)], addr, ordered)
}

func (m *mirror) unmap() { _ = unix.Munmap(m.pages) }
