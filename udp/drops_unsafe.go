package udp

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// drops returns how many packets the kernel has dropped because the receive buffer of a socket was
// full.
func drops(fd int) uint64 {
	const memInfoDrops = 8 // SK_MEMINFO_DROPS
	var info [memInfoDrops + 1]uint32
	size := uint32(unsafe.Sizeof(info))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_MEMINFO,
		uintptr(unsafe.Pointer(&info[0])), uintptr(unsafe.Pointer(&size)), 0)
	if e != 0 {
		return 0
	}
	return uint64(info[memInfoDrops])
}
