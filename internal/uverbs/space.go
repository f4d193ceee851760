package uverbs

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/mr"
	"golang.org/x/sys/unix"
)

// maxSpaces limits the processes that register memory with one context and are alive.
const maxSpaces = 64

// space is the address space of a program. /proc/PID/mem belongs to the address space, so after an
// exec or an exit, accesses fail, and they never reach another process that got the same PID. The
// owner of the loop has the fields after maps.
type space struct {
	fd    int
	maps  int // /proc/PID/maps
	dirty []store
	fast  fast
}

func openSpace(pid int) (*space, error) {
	// First, so that the files are those of this process if it is alive when they are used.
	pidfd, err := unix.PidfdOpen(pid, 0)
	fd, err1 := unix.Open(fmt.Sprintf("/proc/%d/mem", pid), unix.O_RDWR|unix.O_CLOEXEC, 0)
	maps, err2 := unix.Open(fmt.Sprintf("/proc/%d/maps", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	s := &space{fd: fd, maps: maps, fast: fast{pid: pid, pidfd: pidfd}}
	if failed := errors.Join(err1, err2); failed != nil {
		s.close()
		return nil, fmt.Errorf("uverbs: open the memory of process %d: %w", pid, failed)
	}
	s.fast.on = err == nil && sameUser(pid)
	return s, nil
}

func (s *space) close() {
	for _, fd := range []int{s.fd, s.maps, s.fast.pidfd} {
		_ = unix.Close(fd)
	}
}

// dead reports whether the process has ended or executes another program. A read of the memory of a
// process that is alive either succeeds or fails.
func (s *space) dead() bool {
	var b [1]byte
	n, err := unix.Pread(s.fd, b[:], 0)
	return n == 0 && err == nil
}

// abandon closes the files of a dead process. Accesses fail as before. The owner of the loop calls
// it, because mirrors may still use the space.
func (s *space) abandon() {
	s.close()
	s.fd, s.maps, s.fast.pidfd, s.fast.on = -1, -1, -1, false
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
	now := loaded{m, addr, addr + uint64(len(b))}
	if !ok || m.dev.loaded.covers(&now) {
		return ok
	}
	if uint64(len(b)) < pageSize {
		b, now.from, now.to = m.widen(addr, len(b))
	}
	if !m.space.load(b, now.from) {
		return false
	}
	m.dev.loaded = now
	return true
}

// widen returns the part of the region in the pages of a small range. Reading whole pages takes
// hardly longer, and programs often send small pieces of a buffer one after the other.
func (m *mirror) widen(addr uint64, n int) (b []byte, from, to uint64) {
	from = max(addr&^(pageSize-1), m.addr)
	to = min((addr+uint64(n)+pageSize-1)&^(pageSize-1), m.addr+uint64(len(m.mem)))
	return m.mem[from-m.addr : to-m.addr], from, to
}

// loaded is the memory that was loaded last. Work requests and answers that were waiting then need
// not load it again in the same step: their data does not change until they complete, or may be of
// any time since the request came. Programs often send a buffer several times.
type loaded struct {
	mirror   *mirror
	from, to uint64 // in the program
}

func (l *loaded) covers(o *loaded) bool {
	return l.mirror == o.mirror && l.from <= o.from && o.to <= l.to
}

// Store implements mr.Backing.
func (m *mirror) Store(dst, src []byte, ordered bool) {
	addr, ok := m.at(dst)
	if !ok || len(src) == 0 || m.gone {
		return
	}
	if len(m.space.dirty) == 0 {
		m.dev.dirty = append(m.dev.dirty, m.space)
	}
	m.dev.loaded = loaded{}
	m.space.add(src, addr, ordered)
}

func (m *mirror) unmap() { _ = unix.Munmap(m.pages) }
