package osnet

import (
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// blocked returns the signals that the calling thread blocks.
func blocked(t *testing.T) uint64 {
	t.Helper()
	var mask unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, nil, &mask); err != nil {
		t.Fatal(err)
	}
	return mask.Val[0]
}

func TestWithoutSignals(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	was := blocked(t)
	kept := uint64(faults | 1<<(unix.SIGKILL-1) | 1<<(unix.SIGSTOP-1))
	var out []byte
	err := WithoutSignals(func(before unix.Sigset_t) {
		if before.Val[0] != was {
			t.Errorf("%#x were blocked before, want %#x", before.Val[0], was)
		}
		if got := blocked(t) | kept; got != 1<<64-1 {
			t.Errorf("%#x are blocked, want all", got)
		}
		out, _ = exec.Command("grep", "SigBlk", "/proc/self/status").Output()
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := string(out); !strings.Contains(got, fmt.Sprintf("%016x", ^kept)) {
		t.Errorf("a process blocks %q, want %x", got, ^kept)
	}
	if got := blocked(t); got != was {
		t.Errorf("%#x are blocked afterwards, want %#x", got, was)
	}
}
