package supervisor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/seccomp"
)

// socket creates the socket that the program gets instead of one of NETLINK_RDMA: of
// NETLINK_USERSOCK, which all kernels have. The program binds it, and receives from it, without
// the supervisor. What it sends is intercepted.
func (s *Supervisor) socket(c *seccomp.Call) {
	kind := int(c.Args[1])
	fd, err := unix.Socket(unix.AF_NETLINK, kind|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		failWith(c, err)
		return
	}
	defer unix.Close(fd)
	s.mu.Lock()
	n, err := s.installInRange(c, fd, kind&unix.SOCK_CLOEXEC != 0)
	s.mu.Unlock()
	if err != nil {
		failWith(c, err)
		return
	}
	result(c, int64(n), 0)
}

// maxRequest bounds the size of a request, in bytes, and its number of pieces.
const (
	maxRequest = 64 << 10
	maxPieces  = 64
)

// sendmsg answers sendto and sendmsg. It lets the kernel execute those on other sockets.
func (s *Supervisor) sendmsg(c *seccomp.Call) {
	var st unix.Stat_t
	err := unix.Stat(fdPath(c, int(int32(c.Args[0]))), &st)
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		resume(c)
		return
	}
	port, ok := netlinkPort(st.Ino)
	if !ok || !c.Valid() {
		resume(c)
		return
	}
	var b []byte
	if c.Nr == unix.SYS_SENDTO {
		b, err = readMemory(c, c.Args[1], c.Args[2])
	} else {
		b, err = readMessage(c, c.Args[1])
	}
	if err != nil {
		failWith(c, err)
		return
	}
	if err := s.answer(b, port); err != nil {
		failWith(c, err)
		return
	}
	result(c, int64(len(b)), 0)
}

// answer sends the answers to a request to a netlink port.
func (s *Supervisor) answer(b []byte, port uint32) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_USERSOCK)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	d := s.c.Netlink()
	for _, m := range nldev.Answer(b, port, &d) {
		err := unix.Sendto(fd, m, unix.MSG_DONTWAIT, &unix.SockaddrNetlink{
			Family: unix.AF_NETLINK, Pid: port})
		if err != nil {
			return err
		}
	}
	return nil
}

// netlinkPort returns the port ID of a NETLINK_USERSOCK socket with an inode number.
func netlinkPort(ino uint64) (port uint32, ok bool) {
	b, err := os.ReadFile("/proc/thread-self/net/netlink")
	if err != nil {
		return 0, false
	}
	// Columns: sk Eth Pid Groups Rmem Wmem Dump Locks Drops Inode
	inode := strconv.FormatUint(ino, 10)
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) >= 10 && f[9] == inode && f[1] == fmt.Sprint(unix.NETLINK_USERSOCK) {
			p, err := strconv.ParseUint(f[2], 10, 32)
			return uint32(p), err == nil && p != 0
		}
	}
	return 0, false
}

// readMemory reads n bytes of the program.
func readMemory(c *seccomp.Call, addr, n uint64) ([]byte, error) {
	if n > maxRequest {
		return nil, unix.EMSGSIZE
	}
	b := make([]byte, n)
	return b, c.ReadAt(b, addr)
}

// readMessage reads the data of a struct msghdr.
func readMessage(c *seccomp.Call, addr uint64) ([]byte, error) {
	const (
		size      = 56
		offIov    = 16
		offIovLen = 24
		iovSize   = 16
	)
	var h [size]byte
	if err := c.ReadAt(h[:], addr); err != nil {
		return nil, err
	}
	iov := binary.NativeEndian.Uint64(h[offIov:])
	n := binary.NativeEndian.Uint64(h[offIovLen:])
	if n > maxPieces {
		return nil, unix.EMSGSIZE
	}
	var b []byte
	for i := range n {
		var v [iovSize]byte
		if err := c.ReadAt(v[:], iov+i*iovSize); err != nil {
			return nil, err
		}
		p, err := readMemory(c, binary.NativeEndian.Uint64(v[:]),
			binary.NativeEndian.Uint64(v[8:]))
		if err != nil {
			return nil, err
		}
		if b = append(b, p...); len(b) > maxRequest {
			return nil, unix.EMSGSIZE
		}
	}
	return b, nil
}
