package supervisor

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

func init() { programs["block"] = block }

// block makes more calls that wait than there are goroutines, until another call succeeds.
func block() int {
	fd, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return statusBad
	}
	call := func(text string) unix.Errno {
		b := []byte(text)
		_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), verbsIoctl,
			uintptr(unsafe.Pointer(&b[0])))
		return e
	}
	results := make(chan unix.Errno)
	const waiting = blockedCalls - 1
	for range waiting {
		go func() { results <- call(blockArg) }()
	}
	if e := call(countArg); e != 0 {
		fmt.Fprintln(os.Stderr, "a call while others wait:", e)
		return statusBad
	}
	if e := call(blockArg); e != 0 { // ends the others
		fmt.Fprintln(os.Stderr, "the last call:", e)
		return statusBad
	}
	for range waiting {
		if e := <-results; e != 0 {
			fmt.Fprintln(os.Stderr, "a call that waits:", e)
			return statusBad
		}
	}
	return 0
}

// Calls that wait do not delay others.
func TestBlock(t *testing.T) {
	if o := runProgram(t, "block", 0); o.status != 0 {
		t.Errorf("exit status %d:\n%s", o.status, o.stderr)
	}
}
