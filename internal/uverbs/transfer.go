package uverbs

import (
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
)

// maxDirty is the number of stores that are collected before they are written. One system call
// writes them: each has at most two pieces of local memory and one in the program, and the kernel
// allows 1024 (UIO_MAXIOV).
const maxDirty = 256

// store is a piece of memory that waits to be written.
type store struct {
	b       []byte
	addr    uint64 // in the program
	ordered bool   // see mr.Backing
}

// fast moves data with process_vm_readv(2) and process_vm_writev(2), which need less time than
// /proc/PID/mem, but take a PID. They are not used after Device.Executes, and not if the process
// has ended. Between that check and the access, the PID could only become that of another process
// if all others were used meanwhile. For this case, too, the process must be of the same user.
type fast struct {
	on     bool
	pid    int
	pidfd  int
	local  [2 * maxDirty]unix.Iovec
	remote [maxDirty]unix.RemoteIovec
}

// usable reports whether the PID is still that of the process.
func (f *fast) usable() bool {
	f.on = f.on && unix.PidfdSendSignal(f.pidfd, 0, nil, 0) == nil
	return f.on
}

// sameUser reports whether all user IDs of a process are that of this one.
func sameUser(pid int) bool {
	ids, err := osnet.ProcessStatus(pid, "Uid")
	own := strconv.Itoa(os.Geteuid())
	return err == nil && !slices.ContainsFunc(ids, func(id string) bool { return id != own })
}

// load is read for the owner of the loop.
func (s *space) load(b []byte, addr uint64) bool {
	return len(b) == 0 || s.fast.usable() && s.fast.read(b, addr) || s.read(b, addr)
}

// read reads program memory.
func (f *fast) read(b []byte, addr uint64) bool {
	f.local[0].Base = &b[0]
	f.local[0].SetLen(len(b))
	f.remote[0] = unix.RemoteIovec{Base: uintptr(addr), Len: len(b)}
	n, err := unix.ProcessVMReadv(f.pid, f.local[:1], f.remote[:1], 0)
	f.local[0].Base = nil
	return err == nil && n == len(b)
}

// add collects a store.
func (s *space) add(b []byte, addr uint64, ordered bool) {
	if len(s.dirty) == maxDirty {
		s.flush()
	}
	s.dirty = append(s.dirty, store{b, addr, ordered})
}

// flush writes the collected stores, in order. If the program has unmapped the memory, its bytes
// are lost, as with a NIC, whose pinned pages are not those of the program any more.
func (s *space) flush() {
	if len(s.dirty) == 0 {
		return
	}
	done := 0
	if s.fast.usable() {
		done = s.fast.write(s.dirty)
	}
	for i := range s.dirty {
		d := &s.dirty[i]
		skip := min(done, len(d.b))
		done -= skip
		if head := len(d.b) - d.tail(); skip < head {
			s.write(d.b[skip:head], d.addr+uint64(skip))
			skip = head
		}
		if skip < len(d.b) {
			s.write(d.b[skip:], d.addr+uint64(skip))
		}
		*d = store{}
	}
	s.dirty = s.dirty[:0]
}

// tail returns the number of bytes that become visible after the others.
func (d *store) tail() int {
	if d.ordered {
		return lastWord(d.addr, len(d.b))
	}
	return 0
}

// write writes stores with one system call and returns the number of bytes up to the first one
// that could not be written. Stores to contiguous memory, such as the packets of a message, become
// one piece of the program's memory, because the kernel looks up the pages of each piece. It copies
// the local pieces in order, so the last word of an ordered store is one of its own. That suffices
// on amd64, which gorxe run needs: it keeps stores in order.
func (f *fast) write(stores []store) int {
	local, remote := f.local[:0], f.remote[:0]
	end := uint64(0)
	for i := range stores {
		d := &stores[i]
		head := len(d.b) - d.tail()
		local = appendPiece(local, d.b[:head])
		local = appendPiece(local, d.b[head:])
		if len(remote) > 0 && d.addr == end {
			remote[len(remote)-1].Len += len(d.b)
		} else {
			remote = append(remote, unix.RemoteIovec{Base: uintptr(d.addr), Len: len(d.b)})
		}
		end = d.addr + uint64(len(d.b))
	}
	n, err := unix.ProcessVMWritev(f.pid, local, remote, 0)
	clear(local)
	if err != nil {
		return 0
	}
	return n
}

// appendPiece appends b, unless it is empty.
func appendPiece(local []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return local
	}
	piece := unix.Iovec{Base: &b[0]}
	piece.SetLen(len(b))
	return append(local, piece)
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
