package osnet

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// faults are the signals of faults and traps, which concern the thread that causes them.
const faults = 1<<(unix.SIGILL-1) | 1<<(unix.SIGTRAP-1) | 1<<(unix.SIGBUS-1) | 1<<(unix.SIGFPE-1) |
	1<<(unix.SIGSEGV-1)

// WithoutSignals runs f while all signals but those of faults are blocked on its thread, and passes
// it the signals that were blocked before. Processes that f starts inherit the mask. Signals for
// this process go to other threads, or wait.
func WithoutSignals(f func(before unix.Sigset_t)) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	all, before := unix.Sigset_t{Val: [16]uint64{^uint64(faults)}}, unix.Sigset_t{}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return os.NewSyscallError("sigprocmask", err)
	}
	defer func() { _ = unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil) }()
	f(before)
	return nil
}

// BeforeStart is called before the first process is started with package os/exec. It lets package
// os try out clone(2), which it does once, now.
//
// The child of this trial shares the memory of this process and has its signal handlers, but is
// another process (os.checkClonePidfd in Go 1.23 to 1.26). A terminal sends SIGINT to both. If the
// child runs Go's handler, and the handler ends it, then the thread of this process goes on with
// the state of a thread in a signal handler, and crashes: "morestack on gsignal". With signals
// blocked, the child runs no handler.
func BeforeStart() {
	_ = WithoutSignals(func(unix.Sigset_t) {
		if p, err := os.FindProcess(os.Getpid()); err == nil {
			_ = p.Release()
		}
	})
}
