package uverbs

import (
	"bytes"
	"strconv"

	"golang.org/x/sys/unix"
)

// mapsChunk is the number of bytes of /proc/PID/maps that are read at once. It is longer than a
// line, which names a file by its path.
const mapsChunk = 16 << 10

// mapped reports whether the program has mapped all n bytes at addr, readable, and also writable if
// write is set.
func (s *space) mapped(addr, n uint64, write bool) bool {
	for end := addr + n; ; {
		m, err := queryMapping(s.maps, addr)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.ENOTTY || err == unix.EPERM || err == unix.EACCES || err == unix.ENOSYS:
			return s.listed(addr, end-addr, write)
		case err != nil || m.end <= addr || !m.read || write && !m.write:
			return false
		}
		if addr = m.end; addr >= end {
			return true
		}
	}
}

// listed is mapped for kernels that must list all mappings, and sandboxes that forbid the ioctl.
func (s *space) listed(addr, n uint64, write bool) bool {
	buf := make([]byte, mapsChunk)
	have, end := 0, addr+n
	for off := int64(0); ; {
		got, err := unix.Pread(s.maps, buf[have:], off)
		if err == unix.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return false
		}
		off += int64(got)
		have += got
		rest := buf[:have]
		for {
			line, after, ok := bytes.Cut(rest, []byte{'\n'})
			if !ok {
				break
			}
			rest = after
			m, ok := parseMapping(line)
			switch {
			case !ok:
				return false
			case m.end <= addr:
				continue
			case m.start > addr || !m.read || write && !m.write:
				return false
			}
			if addr = m.end; addr >= end {
				return true
			}
		}
		if have = copy(buf, rest); have == len(buf) {
			return false // a line without end
		}
	}
}

// mapping is a line of /proc/PID/maps.
type mapping struct {
	start, end  uint64
	read, write bool
}

// parseMapping parses the start of a line, for example "7f0000000000-7f0000001000 rw-p".
func parseMapping(line []byte) (m mapping, ok bool) {
	first, rest, ok1 := bytes.Cut(line, []byte{'-'})
	last, rest, ok2 := bytes.Cut(rest, []byte{' '})
	if !ok1 || !ok2 || len(rest) < 2 {
		return m, false
	}
	var err1, err2 error
	m.start, err1 = strconv.ParseUint(string(first), 16, 64)
	m.end, err2 = strconv.ParseUint(string(last), 16, 64)
	m.read, m.write = rest[0] == 'r', rest[1] == 'w'
	return m, err1 == nil && err2 == nil
}
