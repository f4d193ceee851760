package supervisor

import (
	"os"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { programs["execute"] = execute }

// envFD is the descriptor of the device in a program that has executed itself.
const envFD = "GORXE_TEST_FD"

// execute asks the device which process has executed a program, executes itself, and asks again.
func execute() int {
	fd, err := strconv.Atoi(os.Getenv(envFD))
	again := err == nil
	if !again {
		if fd, err = unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR, 0); err != nil {
			return statusBad
		}
	}
	b := []byte(execArg)
	pid, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl,
		uintptr(unsafe.Pointer(&b[0])))
	switch {
	case e != 0 || !again && pid != 0:
		return statusBad
	case again && int(pid) == os.Getpid():
		return 0
	case again:
		return 1
	}
	env := append(os.Environ(), envFD+"="+strconv.Itoa(fd))
	_ = unix.Exec("/proc/self/exe", []string{"program"}, env)
	return statusBad
}

// The device learns that a process executes a program.
func TestExecute(t *testing.T) {
	if o := runProgram(t, "execute", 0); o.status != 0 {
		t.Errorf("exit status %d:\n%s", o.status, o.stderr)
	}
}
