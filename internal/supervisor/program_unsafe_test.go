package supervisor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/sysfs"
)

// programs are what the test binary does as a program. The result is the exit status.
var programs = map[string]func() int{
	"use":   use,
	"seven": func() int { return 7 },
	"killed": func() int {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	},
	"orphan": orphan,
	"ignore": func() int {
		if !signal.Ignored(unix.SIGINT) || !signal.Ignored(unix.SIGHUP) {
			return statusBad
		}
		return 0
	},
	"leave": func() int {
		c := exec.Command("/bin/sh", "-c", "sleep 0.2; echo ready; exec sleep 60")
		c.Stdout = os.Stdout
		if c.Start() != nil {
			return statusBad
		}
		return 0
	},
	"inherit": func() int {
		b, err := io.ReadAll(os.NewFile(3, "inherited"))
		if string(b) != "inherited" {
			fmt.Fprintf(os.Stderr, "descriptor 3: %q, %v\n", b, err)
			return statusBad
		}
		return 0
	},
	"nested": func() int {
		// A supervisor starts with an open of the binary, which is not of the tree.
		return supervise()
	},
	"sleep": func() int {
		fmt.Println("ready")
		time.Sleep(20 * time.Second)
		return 0
	},
}

// orphan leaves a process that looks for the device after its parent has ended.
func orphan() int {
	c := exec.Command("/bin/sh", "-c", "sleep 0.1; cat /sys/class/infiniband_verbs/uverbs0/ibdev")
	c.Stdout = os.Stdout
	if c.Start() != nil {
		return statusBad
	}
	return 0
}

// use uses the device in all ways. It prints what is wrong.
func use() int {
	status := 0
	check := func(what string, ok bool, got ...any) {
		if !ok {
			fmt.Fprintln(os.Stderr, append([]any{what + ":"}, got...)...)
			status = statusBad
		}
	}
	const path = "/dev/infiniband/uverbs0"
	names, err := os.ReadDir("/sys/class/infiniband_verbs")
	check("list of devices", err == nil && len(names) == 2, names, err)
	b, err := os.ReadFile("/sys/class/infiniband/rxe0/node_type")
	check("file", string(b) == "1: CA\n", b, err)
	_, err = os.Stat("/sys/class/infiniband/rxe1")
	check("file that does not exist", errors.Is(err, unix.ENOENT), err)
	_, err = os.Open("/dev/infiniband/../../etc/passwd")
	check("file outside of the emulated directories", errors.Is(err, unix.ENOENT), err)
	err = os.WriteFile("/sys/class/infiniband/rxe0/node_desc", nil, 0)
	check("writing to a file", errors.Is(err, unix.EACCES), err)
	check("access", unix.Access(path, unix.R_OK|unix.W_OK) == nil)
	check("access to run", unix.Access(path, unix.X_OK) == unix.EACCES)
	_, err = os.Readlink(path)
	check("readlink", errors.Is(err, unix.EINVAL), err)
	_, err = unix.Getxattr(path, "user.x", nil)
	check("getxattr", errors.Is(err, unix.ENODATA), err)
	var st unix.Stat_t
	err = unix.Stat(path, &st)
	check("stat", isDevice(&st), st, err)
	var stx unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &stx)
	check("statx", stx.Rdev_major == 231 && stx.Rdev_minor == 192, stx, err)

	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
	check("open", err == nil, err)
	st = unix.Stat_t{}
	err = unix.Fstat(fd, &st)
	check("fstat", isDevice(&st), st, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	check("fcntl", err == nil, err)
	p, err := unix.Mmap(fd, 4096, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	check("mmap", err == nil && len(p) == 4096, err)
	invert := func(what string, fd int) {
		arg := uint64(0x0123456789abcdef)
		n, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl,
			uintptr(unsafe.Pointer(&arg)))
		check(what, n == 42 && arg == ^uint64(0x0123456789abcdef), n, e, arg)
	}
	invert("ioctl", fd)
	pos, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	check("position", pos == fakePosition, pos, err)
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl, 8)
	check("ioctl with a bad address", e == unix.EFAULT, e)
	_, _, e = unix.Syscall(unix.SYS_IOCTL, 2, verbsIoctl, 0)
	check("ioctl of another file", e == unix.ENOTTY || e == unix.EINVAL, e)

	n, err := unix.Write(fd, []byte("command"))
	check("write", err == nil && n > 0, n, err)
	var event [5]byte
	_, err = unix.Read(n, event[:])
	check("descriptor from the device", string(event[:]) == "event", event, err)

	// The device stays open until its last descriptor and mapping is gone.
	copied, err := unix.Dup(fd)
	check("dup", err == nil, err)
	_ = unix.Close(fd)
	invert("ioctl of a copy", copied)
	st = unix.Stat_t{}
	err = unix.Fstat(copied, &st)
	check("fstat of a copy", isDevice(&st), st, err)
	other, err := unix.Open(path, unix.O_RDWR, 0)
	check("second open", err == nil, err)
	invert("ioctl of the second open", other)
	_ = unix.Close(copied)
	_ = unix.Close(other)

	channel(check)
	netlink(check)
	return status
}

func isDevice(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(231, 192)
}

// channel uses a device whose file is a pipe.
func channel(check func(string, bool, ...any)) {
	fd, err := unix.Open("/dev/infiniband/rdma_cm", unix.O_RDWR, 0)
	check("open of a pipe", err == nil, err)
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	check("fstat of a pipe", st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == sysfs.CMNumber, st,
		err)
	n, err := unix.Write(fd, []byte("command"))
	check("write to a pipe", n == 7 && err == nil, n, err)
	err = unix.SetNonblock(fd, true)
	check("nonblocking mode", err == nil, err)
	_, err = unix.Write(fd, []byte("command"))
	check("nonblocking write", errors.Is(err, unix.EAGAIN), err)
	_ = unix.Close(fd)
}

// netlink asks for the devices as the command rdma does.
func netlink(check func(string, bool, ...any)) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	check("socket", err == nil, err)
	err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	check("bind", err == nil, err)
	request := []byte{16, 0, 0, 0, 1, 5 << 2, 1, 3, 9, 0, 0, 0, 0, 0, 0, 0} // dump of devices
	for _, send := range []func() error{
		func() error { return unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{}) },
		func() error { return unix.Sendmsg(fd, request, nil, &unix.SockaddrNetlink{}, 0) },
	} {
		err := send()
		check("send", err == nil, err)
		var kinds []uint16
		var text strings.Builder
		for range 2 {
			b := make([]byte, 4096)
			_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO,
				&unix.Timeval{Sec: 10})
			n, _, err := unix.Recvfrom(fd, b, 0)
			if err != nil || n < 16 {
				check("receive", false, n, err)
				return
			}
			kinds = append(kinds, uint16(b[4])|uint16(b[5])<<8)
			text.Write(b[:n])
		}
		check("answers", slices.Equal(kinds, []uint16{5<<10 | 1, unix.NLMSG_DONE}) &&
			strings.Contains(text.String(), "rxe0"), kinds)
	}
	check("close", syscall.Close(fd) == nil)
}
