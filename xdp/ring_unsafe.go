//go:build linux

package xdp

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapRing maps the ring at page offset pgoff of the socket. off holds the offsets of the indices
// and slots in the mapping.
func mapRing[T any](r *ring[T], fd int, pgoff int64, size int, off *unix.XDPRingOffset) error {
	var slot T
	length := int(off.Desc) + size*int(unsafe.Sizeof(slot))
	mem, err := unix.Mmap(fd, pgoff, length, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("map AF_XDP ring: %w", err)
	}
	at := func(o uint64) unsafe.Pointer { return unsafe.Pointer(&mem[o]) }
	*r = ring[T]{
		producer: (*atomic.Uint32)(at(off.Producer)),
		consumer: (*atomic.Uint32)(at(off.Consumer)),
		flags:    (*atomic.Uint32)(at(off.Flags)),
		slots:    unsafe.Slice((*T)(at(off.Desc)), size),
		mask:     uint32(size - 1),
		mem:      mem,
	}
	r.own = r.producer.Load() // 0 on a new socket
	r.seen = r.own
	return nil
}

func (r *ring[T]) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
	}
	*r = ring[T]{}
}

// registerUMEM registers mem, a mapping outside the Go heap, as the packet memory of the socket.
func registerUMEM(fd int, mem []byte) error {
	reg := unix.XDPUmemReg{
		Addr: uint64(uintptr(unsafe.Pointer(&mem[0]))),
		Len:  uint64(len(mem)),
		Size: chunkSize,
	}
	return setsockopt(fd, unix.SOL_XDP, unix.XDP_UMEM_REG, unsafe.Pointer(&reg), unsafe.Sizeof(reg))
}

func ringOffsets(fd int) (off unix.XDPMmapOffsets, err error) {
	err = getsockopt(fd, unix.SOL_XDP, unix.XDP_MMAP_OFFSETS, unsafe.Pointer(&off),
		unsafe.Sizeof(off))
	return off, err
}

func xskStatistics(fd int) (s unix.XDPStatistics, err error) {
	err = getsockopt(fd, unix.SOL_XDP, unix.XDP_STATISTICS, unsafe.Pointer(&s), unsafe.Sizeof(s))
	return s, err
}

// isZeroCopy reports whether the driver accesses the packet memory of the bound socket directly.
func isZeroCopy(fd int) bool {
	var flags uint32
	err := getsockopt(fd, unix.SOL_XDP, unix.XDP_OPTIONS, unsafe.Pointer(&flags),
		unsafe.Sizeof(flags))
	return err == nil && flags&unix.XDP_OPTIONS_ZEROCOPY != 0
}

func setsockopt(fd, level, opt int, p unsafe.Pointer, n uintptr) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt),
		uintptr(p), n, 0)
	if e != 0 {
		return e
	}
	return nil
}

func getsockopt(fd, level, opt int, p unsafe.Pointer, n uintptr) error {
	size := uint32(n)
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(opt),
		uintptr(p), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// kickTx makes the kernel send what is in the transmit ring. It is a raw system call because it
// does not block, and the scheduler's bookkeeping would cost as much as the call itself.
func kickTx(fd int) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_SENDTO, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}

// kickRx makes the kernel process the fill ring and, with busy-polling, poll the NIC.
func kickRx(fd int) unix.Errno {
	_, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, uintptr(fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
	return e
}
