package scale

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// missCounter counts the last-level cache misses of the calling thread in user space and in the
// kernel, or only in user space if the user may not count those of the kernel. Many virtual
// machines have no such counter; then the counts are negative.
type missCounter struct {
	fd       int
	userOnly bool
}

// newMissCounter never returns nil. An error says why the counter does not count.
func newMissCounter() (*missCounter, error) {
	attr := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_HARDWARE, Size: unix.PERF_ATTR_SIZE_VER5,
		Config: unix.PERF_COUNT_HW_CACHE_MISSES,
	}
	m := &missCounter{}
	var err error
	if m.fd, err = openCounter(&attr); forbidden(err) {
		attr.Bits |= unix.PerfBitExcludeKernel | unix.PerfBitExcludeHv
		m.userOnly = true
		m.fd, err = openCounter(&attr)
	}
	return m, err
}

// openCounter opens a counter for the calling thread on any CPU. It returns -1 with an error.
func openCounter(attr *unix.PerfEventAttr) (int, error) {
	fd, err := unix.PerfEventOpen(attr, 0, -1, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func forbidden(err error) bool { return errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM) }

// aboutMisses explains the column with the misses, or why it is empty. The arguments are the
// results of newMissCounter.
func aboutMisses(m *missCounter, err error) string {
	const what = "misses are last-level cache misses of the sending thread per message, "
	switch {
	case err == nil && m.userOnly:
		return what + "without the kernel's\n(kernel.perf_event_paranoid)."
	case err == nil:
		return what + "with the kernel's."
	case forbidden(err):
		return "misses are unknown: run as root, or set kernel.perf_event_paranoid to 2 or less."
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP):
		return "misses are unknown: this processor or its virtual machine has no counter for them."
	}
	return fmt.Sprintf("misses are unknown: perf_event_open: %v.", err)
}

// read returns the count, or a negative number if there is none.
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
