package fence

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2) that x/sys does not name: Linux 4.14 and later.
const (
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// Asymmetric tells whether Store followed by a load is enough for one side of Dekker's pattern if the other one calls Heavy between its
// store and its load. The first call registers the process with the kernel, which may take milliseconds.
func Asymmetric() bool { return asymmetric() }

var asymmetric = sync.OnceValue(func() bool { return !Plain || membarrier(registerPrivateExpedited) })

// Heavy makes every running thread of the process pass a full memory barrier, the caller's included; one that does not run has passed
// one when it was switched off. It takes some microseconds. Without Asymmetric it does nothing of use.
func Heavy() {
	if Plain && !membarrier(privateExpedited) {
		refused()
	}
}

// drain is much longer than a store takes to leave the processor that made it: a microsecond, if that processor runs, and none if not.
const drain = time.Millisecond

// refused is Heavy where the kernel, which has let the process register, says no: a seccomp filter came later, the process was moved
// without its registration (CRIU), or memory is short.
func refused() {
	if !membarrier(registerPrivateExpedited) || !membarrier(privateExpedited) {
		time.Sleep(drain)
	}
}

func membarrier(command uintptr) bool {
	_, _, e := unix.RawSyscall(unix.SYS_MEMBARRIER, command, 0, 0)
	return e == 0
}
