package supervisor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() {
	programs["share"] = share
	programs["shared"] = shared
}

// envClosed names the descriptor that a process must not have inherited.
const envClosed = "GORXE_TEST_CLOSED"

// share passes open devices to other processes: by inheritance and over a socket.
func share() int {
	const path = "/dev/infiniband/uverbs0"
	var fds [3]int
	for i := range fds {
		var err error
		if fds[i], err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return statusBad
		}
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return statusBad
	}
	if err := unix.Sendmsg(pair[0], []byte{0}, unix.UnixRights(fds[1]), nil, 0); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	c := exec.Command("/proc/self/exe")
	c.Env = append(os.Environ(), envProgram+"=shared", envClosed+"="+strconv.Itoa(fds[2]))
	c.Stderr = os.Stderr
	c.ExtraFiles = []*os.File{os.NewFile(uintptr(fds[0]), "device"),
		os.NewFile(uintptr(pair[1]), "socket")}
	if err := c.Start(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	// The other process keeps the devices open.
	for _, fd := range []int{fds[0], fds[1], pair[0], pair[1]} {
		_ = unix.Close(fd)
	}
	if err := c.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return statusBad
	}
	return 0
}

// shared uses the devices of another process.
func shared() int {
	const inherited, socket = 3, 4
	status := 0
	check := func(what string, fd int) {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || !isDevice(&st) {
			fmt.Fprintf(os.Stderr, "%s: %+v, %v, want a device\n", what, st, err)
			status = statusBad
		}
		arg := uint64(0x0123456789abcdef)
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl,
			uintptr(unsafe.Pointer(&arg)))
		// The device refuses calls of processes that have not opened it, after the first step.
		if e != unix.EIO || arg != ^uint64(0x0123456789abcdef) {
			fmt.Fprintf(os.Stderr, "ioctl of %s = %v, %#x\n", what, e, arg)
			status = statusBad
		}
	}
	check("an inherited descriptor", inherited)
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(binary.Size(int32(0))))
	_, n, _, _, err := unix.Recvmsg(socket, b[:], oob, 0)
	list, err2 := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || err2 != nil || len(list) != 1 {
		fmt.Fprintln(os.Stderr, "no descriptor:", err, err2)
		return statusBad
	}
	fds, err := unix.ParseUnixRights(&list[0])
	if err != nil || len(fds) != 1 {
		fmt.Fprintln(os.Stderr, "no descriptor:", err)
		return statusBad
	}
	check("a descriptor from a socket", fds[0])
	closed, _ := strconv.Atoi(os.Getenv(envClosed))
	var st unix.Stat_t
	if err := unix.Fstat(closed, &st); err == nil && isDevice(&st) {
		fmt.Fprintf(os.Stderr, "fstat of a descriptor with close-on-exec = %v\n", err)
		status = statusBad
	} else if err != nil && !errors.Is(err, unix.EBADF) {
		fmt.Fprintln(os.Stderr, err)
		status = statusBad
	}
	return status
}

// Processes use devices that others have opened, and pass them on.
func TestShare(t *testing.T) {
	if o := runProgram(t, "share", 0); o.status != 0 {
		t.Errorf("exit status %d:\n%s", o.status, o.stderr)
	}
}
