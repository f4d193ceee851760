package scale

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// missCounter counts the calling thread's last-level cache misses, in user space and kernel. Virtual machines often have no
// such counter; then it says so by negative readings.
type missCounter struct{ fd int }

func newMissCounter() *missCounter {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Size: unix.PERF_ATTR_SIZE_VER5, Config: unix.PERF_COUNT_HW_CACHE_MISSES}
	fd, err := unix.PerfEventOpen(&attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		fd = -1
	}
	return &missCounter{fd: fd}
}

func (m *missCounter) read() int64 {
	var b [8]byte
	if m.fd < 0 {
		return -1
	}
	if n, err := unix.Read(m.fd, b[:]); n != len(b) || err != nil {
		return -1
	}
	return int64(binary.NativeEndian.Uint64(b[:]))
}

func (m *missCounter) close() {
	if m.fd >= 0 {
		_ = unix.Close(m.fd)
	}
}
