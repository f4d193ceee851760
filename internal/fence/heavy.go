package fence

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Commands of membarrier(2) that x/sys does not define (Linux 4.14 and later).
const (
	privateExpedited         = 1 << 3
	registerPrivateExpedited = 1 << 4
)

// Asymmetric reports whether Store is enough for one side of Dekker's pattern if the other side
// calls Heavy between its store and its load. The first call registers the process with the kernel,
// which may take milliseconds.
func Asymmetric() bool { return asymmetric() }

var asymmetric = sync.OnceValue(func() bool { return !Plain || membarrier(registerPrivateExpedited) })

// Heavy makes all running threads of the process, including the caller's, execute a full memory
// barrier. Threads that do not run executed one when they were descheduled. It takes a few
// microseconds. It has no effect unless Asymmetric returns true.
func Heavy() {
	if Plain && !membarrier(privateExpedited) {
		refused()
	}
}

// drain is much longer than the time until a store becomes visible to other processors, which is
// about a microsecond.
const drain = time.Millisecond

// refused replaces the barrier if the kernel refuses it after a successful registration: a seccomp
// filter was installed later, the process was restored without its registration (CRIU), or memory
// is short.
func refused() {
	if !membarrier(registerPrivateExpedited) || !membarrier(privateExpedited) {
		time.Sleep(drain)
	}
}

func membarrier(command uintptr) bool {
	_, _, e := unix.RawSyscall(unix.SYS_MEMBARRIER, command, 0, 0)
	return e == 0
}
