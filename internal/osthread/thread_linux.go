package osthread

import "golang.org/x/sys/unix"

// Yield lets other threads run that wait for this processor (sched_yield). The Go scheduler does
// not notice it.
func Yield() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// Pin makes the thread run on CPU number cpu only. The goroutine must be locked to its thread. The
// error is that of sched_setaffinity(2).
func Pin(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// SharpTimers makes the kernel end the sleeps of the thread on time, or, by default, up to 50 us
// late. The goroutine must be locked to its thread.
func SharpTimers(on bool) {
	slack := uintptr(0) // the default
	if on {
		slack = 1 // ns
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, slack, 0, 0, 0)
}
