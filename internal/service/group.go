package service

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// group has the sockets that are bound to UDP port 4791 of an address. The kernel numbers them in
// the order in which they were bound. When one of them is removed, the last one gets its number.
//
// A socket is removed when its last descriptor is closed. The server has a duplicate of each. It
// closes the next duplicate only when the socket of the previous one is gone, so that the order of
// removals, and therefore the numbers, are known. A program that keeps its descriptor after it has
// left delays the removal of others, which does no harm: their slots are not used meanwhile.
type group struct {
	addr  netip.Addr
	socks []*member
}

// member is a socket of a group. Its number is its index in group.socks.
type member struct {
	slot  uint8  // 0: that of the service
	dead  bool   // gets no packets, and is to be removed
	fd    int    // -1: closed; at most one socket of a group
	inode uint64 // number of the socket in the lists of /proc/net
}

// attach tells the kernel the numbers. It needs a socket of the service, because the others refuse
// programs. Without one, the address is not on the interface, and no packets arrive.
func (g *group) attach() error {
	index := map[uint8]int{}
	for i, m := range g.socks {
		if !m.dead {
			index[m.slot] = i
		}
	}
	base := g.find(0)
	if base == nil {
		return nil
	}
	return attachSelect(base.fd, index)
}

// add adds a socket that was just bound. It belongs to the group then.
func (g *group) add(slot uint8, fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	g.socks = append(g.socks, &member{slot: slot, fd: fd, inode: st.Ino})
	return g.attach()
}

// rebase makes a duplicate of a socket the one of the service. It belongs to the group then.
func (g *group) rebase(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		_ = unix.Close(fd)
		return err
	}
	old := g.find(0)
	if old != nil && old.inode == st.Ino {
		return unix.Close(fd)
	}
	if old != nil {
		old.dead = true
	}
	return g.add(0, fd)
}

// isBase reports whether a descriptor is a duplicate of the service's socket.
func (g *group) isBase(fd int) bool {
	var st unix.Stat_t
	m := g.find(0)
	return m != nil && unix.Fstat(fd, &st) == nil && st.Ino == m.inode
}

// undo removes the latest socket, of which no other process has a descriptor.
func (g *group) undo() {
	last := len(g.socks) - 1
	_ = unix.Close(g.socks[last].fd)
	g.socks = g.socks[:last]
}

// open opens a socket for a slot in the network namespace of the calling thread. The descriptor
// belongs to the group.
func (g *group) open(slot uint8, index int, rate uint64) (fd int, err error) {
	// With the filter before the address, the socket never has packets of others, also if a member
	// has detached the program that selects sockets.
	l, err := udpmsg.ListenWith(g.addr, index, true, func(fd int) error {
		if err := pace(fd, rate); err != nil {
			return err
		}
		return restrict(fd, slot)
	})
	if err != nil {
		return -1, err
	}
	if err := g.add(slot, l.FD); err != nil {
		g.close(slot)
		return -1, err
	}
	return l.FD, nil
}

// pace limits the rate of a socket, bytes per second; 0: no limit. Only the queueing discipline fq
// obeys. The kernel never raises the rate again, so that the program cannot, but it can bypass fq's
// pacing with SO_TXTIME. The rate is higher than that at which the member itself sends, so that
// packets do not wait in fq.
func pace(fd int, rate uint64) error {
	if rate == 0 {
		return nil
	}
	return unix.SetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, rate+rate/8)
}

// find returns the open socket of a slot, or nil.
func (g *group) find(slot uint8) *member {
	i := slices.IndexFunc(g.socks, func(m *member) bool { return m.slot == slot && !m.dead })
	if i < 0 {
		return nil
	}
	return g.socks[i]
}

// close ends the use of the socket of a slot. sweep must follow.
func (g *group) close(slot uint8) {
	if m := g.find(slot); m != nil {
		m.dead = true
		_ = g.attach() // packets for the slot go to the service
	}
}

// sweep removes dead sockets. present reports whether a socket still exists. If sweep returns true,
// a program keeps a descriptor, and sweep must be called again.
func (g *group) sweep(present func(inode uint64) bool) (again bool) {
	closing := slices.IndexFunc(g.socks, func(m *member) bool { return m.fd < 0 })
	for {
		if closing < 0 {
			// The last one first, since no other socket gets another number then.
			for i, m := range g.socks {
				if m.dead {
					closing = i
				}
			}
			if closing < 0 {
				return false
			}
			m := g.socks[closing]
			_ = unix.Close(m.fd)
			m.fd = -1
		}
		if present(g.socks[closing].inode) {
			return true
		}
		last := len(g.socks) - 1
		g.socks[closing] = g.socks[last]
		g.socks[last] = nil
		g.socks = g.socks[:last]
		_ = g.attach()
		closing = -1
	}
}

// closeAll closes all sockets.
func (g *group) closeAll() {
	for _, m := range g.socks {
		if m.fd >= 0 {
			_ = unix.Close(m.fd)
		}
	}
	g.socks = nil
}

// socketList looks for sockets in the lists of a network namespace. They are opened at first,
// because a confined process cannot open them later.
type socketList struct {
	fds []int // of /proc/net/udp and udp6
	buf []byte
}

// openSocketList opens the lists of the namespace of the calling thread.
func openSocketList() (*socketList, error) {
	l := &socketList{buf: make([]byte, 64<<10)}
	for _, name := range []string{"udp", "udp6"} {
		fd, err := unix.Open("/proc/thread-self/net/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == unix.ENOENT { // no IPv6
			continue
		}
		if err != nil {
			l.close()
			return nil, err
		}
		l.fds = append(l.fds, fd)
	}
	return l, nil
}

func (l *socketList) close() {
	for _, fd := range l.fds {
		_ = unix.Close(fd)
	}
	l.fds = nil
}

// Fields of a line of the lists.
const (
	localField = 1 // address and port, hexadecimal
	inodeField = 9
)

// each calls f with the fields of all UDP sockets of the namespace.
func (l *socketList) each(f func(fields [][]byte)) error {
	for _, fd := range l.fds {
		var text []byte
		for at := int64(0); ; {
			n, err := unix.Pread(fd, l.buf, at)
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			text = append(text, l.buf[:n]...)
			at += int64(n)
		}
		for line := range bytes.Lines(text) {
			if fields := bytes.Fields(line); len(fields) > inodeField {
				f(fields)
			}
		}
	}
	return nil
}

// read returns the inodes of all UDP sockets.
func (l *socketList) read() (set map[uint64]bool, err error) {
	set = map[uint64]bool{}
	err = l.each(func(fields [][]byte) {
		if n, err := strconv.ParseUint(string(fields[inodeField]), 10, 64); err == nil {
			set[n] = true
		}
	})
	return set, err
}

// bound returns the number of sockets that are bound to UDP port 4791 of an address.
func (l *socketList) bound(a netip.Addr) (n int, err error) {
	want := []byte(localName(a))
	err = l.each(func(fields [][]byte) {
		if bytes.Equal(fields[localField], want) {
			n++
		}
	})
	return n, err
}

// localName returns the field of the lists for UDP port 4791 of an address. The kernel prints words
// of 4 bytes in the byte order of the host.
func localName(a netip.Addr) string {
	var text []byte
	for b := a.AsSlice(); len(b) > 0; b = b[4:] {
		text = fmt.Appendf(text, "%08X", binary.NativeEndian.Uint32(b))
	}
	return fmt.Sprintf("%s:%04X", text, bth.Port)
}
