package udp

import "golang.org/x/sys/unix"

// ShareAll returns duplicates of all sockets of a Port, also those of groups. The caller closes
// them. ShareAll is safe for concurrent use.
func (p *Port) ShareAll() (fds []int) {
	p.change(func(old []*socket) []*socket {
		for _, s := range old {
			if fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
				fds = append(fds, fd)
			}
		}
		return old
	})
	return fds
}
