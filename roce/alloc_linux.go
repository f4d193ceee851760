package roce

import (
	"math"

	"golang.org/x/sys/unix"
)

const (
	// probeFrom is the size in bytes from which on probe asks the operating system. Smaller objects
	// rarely make the runtime ask for memory.
	probeFrom = 1 << 20
	// arenaSize is the unit in which the Go runtime reserves memory.
	arenaSize = 64 << 20
)

// probe reports whether the operating system has n bytes. The Go runtime ends the process if it
// gets no memory, so probe maps as much itself for a moment. That fails if the address space is
// limited (RLIMIT_AS) or if the kernel does not overcommit.
func probe(n int) error {
	if n < probeFrom {
		return nil
	}
	if n > math.MaxInt-arenaSize {
		return unix.ENOMEM
	}
	mem, err := unix.Mmap(-1, 0, n+arenaSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	return unix.Munmap(mem)
}

// adviseHuge advises the kernel to use huge pages for the n bytes at addr.
func adviseHuge(addr, n uintptr) { madvise(addr, n, unix.MADV_HUGEPAGE) }

// collapse makes huge pages of the n bytes at addr.
func collapse(addr, n uintptr) { madvise(addr, n, unix.MADV_COLLAPSE) }

// madvise ignores errors, for example of older kernels: then nothing changes.
func madvise(addr, n uintptr, advice int) {
	_, _, _ = unix.Syscall(unix.SYS_MADVISE, addr, n, uintptr(advice))
}

// machineMemory returns the memory of the machine in bytes.
func machineMemory() uint64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return noLimit
	}
	return uint64(info.Totalram) * uint64(info.Unit)
}
