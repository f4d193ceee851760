package scale

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// missCounter counts the calling thread's last-level cache misses, in user space and kernel, or in user space alone where the
// kernel's are not for everybody. Virtual machines often have no such counter; then its readings are negative.
type missCounter struct {
	fd       int
	userOnly bool
}

// newMissCounter never gives nil: its error says why the counter counts nothing.
func newMissCounter() (*missCounter, error) {
	attr := unix.PerfEventAttr{Type: unix.PERF_TYPE_HARDWARE, Size: unix.PERF_ATTR_SIZE_VER5, Config: unix.PERF_COUNT_HW_CACHE_MISSES}
	m := &missCounter{}
	var err error
	if m.fd, err = openCounter(&attr); forbidden(err) {
		attr.Bits |= unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv
		m.userOnly = true
		m.fd, err = openCounter(&attr)
	}
	return m, err
}

// openCounter is perf_event_open for the calling thread, on whatever CPU it runs; -1 with an error.
func openCounter(attr *unix.PerfEventAttr) (int, error) {
	fd, err := unix.PerfEventOpen(attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// aboutMisses says what the column of misses is, or why it is empty, by what newMissCounter gave.
func aboutMisses(m *missCounter, err error) string {
	switch {
	case err == nil && m.userOnly:
		return "misses are the sending thread's of the last-level cache per message, without the kernel's (kernel.perf_event_paranoid)."
	case err == nil:
		return "misses are the sending thread's of the last-level cache per message, with the kernel's."
	case forbidden(err):
		return "misses are unknown: this user may not count them; be root, or set kernel.perf_event_paranoid to 2 or less."
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP):
		return "misses are unknown: this processor, or its virtual machine, has no counter of them."
	}
	return fmt.Sprintf("misses are unknown: perf_event_open: %v.", err)
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
