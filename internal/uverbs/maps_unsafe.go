package uverbs

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// procmapQuery is struct procmap_query of linux/fs.h.
type procmapQuery struct {
	size, flags, addr                    uint64
	start, end, access, pageSize, offset uint64
	inode                                uint64
	major, minor, nameSize, buildIDSize  uint32
	name, buildID                        uint64
}

// The request PROCMAP_QUERY, and bits of procmapQuery.access.
const (
	procmapIoctl = 0xc0686611 // _IOWR('f', 17, struct procmap_query)

	procmapRead, procmapWrite = 1, 2
)

// queryMapping asks for the mapping at addr through an open /proc/PID/maps. The error is ENOENT if
// there is none, and ENOTTY if the kernel, before Linux 6.11, has no such request.
func queryMapping(fd int, addr uint64) (mapping, error) {
	q := procmapQuery{size: uint64(unsafe.Sizeof(procmapQuery{})), addr: addr}
	_, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), procmapIoctl, uintptr(unsafe.Pointer(&q)))
	if no != 0 {
		return mapping{}, no
	}
	return mapping{q.start, q.end, q.access&procmapRead != 0, q.access&procmapWrite != 0}, nil
}
