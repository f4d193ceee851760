package seccomp

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
)

// ErrTrace means that this process cannot trace the calling thread: a debugger does, or its process
// has other threads, which could meanwhile execute another program or end the process.
var ErrTrace = errors.New("seccomp: the thread cannot be traced")

// Chdir ends a call of chdir(2): the directory dir, a descriptor of this process, becomes the
// working directory of the calling process. With ErrTrace, the call still waits for an answer.
//
// Only a process itself can change its working directory. So this process traces the thread for a
// moment and makes it call fchdir(2) and close(2). Meanwhile, no goroutine may wait for any child
// of this process, because it would get the events of the traced thread.
func (c *Call) Chdir(dir int) error {
	if !canInject || !c.alone() {
		return ErrTrace
	}
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(c.tid); err != nil {
		return fmt.Errorf("%w: %w", ErrTrace, err)
	}
	t := tracee{tid: c.tid}
	if !c.Valid() { // the thread was killed, and another process may have its ID
		return errors.Join(errEnded, t.interrupt(), t.detach())
	}
	n, e := c.Install(dir, true)
	answer := unix.EACCES
	errors.As(e, &answer)
	// The thread stops on its way out of the call.
	err := errors.Join(unix.PtraceInterrupt(c.tid), c.Fail(answer))
	if err == nil {
		err = t.await(interrupted)
	}
	if err == nil && e == nil {
		err = t.chdir(n)
	}
	return errors.Join(err, t.detach())
}

// alone reports whether the calling thread is the only one of its process.
func (c *Call) alone() bool {
	threads, err := osnet.ProcessStatus(c.tid, "Threads")
	return err == nil && len(threads) == 1 && threads[0] == "1" && c.Valid()
}

// tracee is a thread that this thread traces.
type tracee struct {
	tid     int
	stopped bool // by SIGSTOP, which could not be delivered
}

// Stops of a traced thread: a signal, and an event in the higher bits.
const (
	interrupted = unix.SIGTRAP | unix.PTRACE_EVENT_STOP<<8
	atSyscall   = unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD
)

// maxStops bounds the stops between two that await expects.
const maxStops = 100

// errEnded means that the thread has ended.
var errEnded = errors.New("seccomp: the traced thread has ended")

// interrupt stops a thread that runs.
func (t *tracee) interrupt() error {
	if err := unix.PtraceInterrupt(t.tid); err != nil {
		return err
	}
	return t.await(interrupted)
}

// await waits until the thread stops as wanted.
func (t *tracee) await(want unix.Signal) error {
	for range maxStops {
		stop, err := t.wait()
		switch {
		case err != nil:
			return err
		case stop == want:
			return nil
		case want == interrupted && stop>>8 == unix.PTRACE_EVENT_STOP:
			return nil // SIGSTOP has stopped the process, and will again after detach
		case stop == unix.SIGSTOP:
			t.stopped = true
		}
		if err := unix.PtraceSyscall(t.tid, 0); err != nil {
			return err
		}
	}
	return errEnded
}

// wait waits for the next stop. If the thread has ended, it leaves the status to others.
func (t *tracee) wait() (unix.Signal, error) {
	const cldTrapped, cldStopped = 4, 5 // see waitid(2)
	for {
		var info unix.Siginfo
		err := unix.Waitid(unix.P_PID, t.tid, &info,
			unix.WSTOPPED|unix.WEXITED|unix.WALL|unix.WNOWAIT, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return 0, err
		case info.Code != cldTrapped && info.Code != cldStopped:
			return 0, errEnded
		}
		var ws unix.WaitStatus
		_, err = unix.Wait4(t.tid, &ws, unix.WALL, nil)
		if err == nil && ws.Stopped() {
			return unix.Signal(ws >> 8), nil
		} else if !errors.Is(err, unix.EINTR) {
			return 0, errors.Join(errEnded, err)
		}
	}
}

// detach lets the thread run on. An error means that it has ended.
func (t *tracee) detach() error {
	err := unix.PtraceDetach(t.tid)
	if t.stopped {
		_ = unix.Kill(t.tid, unix.SIGSTOP)
	}
	return err
}

// allSignals is a mask that blocks all signals but SIGKILL and SIGSTOP.
const allSignals = ^uint64(0)

// withoutSignals calls f while the stopped thread blocks all signals. They would otherwise have to
// be delivered in the middle of f.
func (t *tracee) withoutSignals(f func() error) error {
	mask, err := signalMask(t.tid)
	if err != nil {
		return err
	}
	if err := setSignalMask(t.tid, allSignals); err != nil {
		return err
	}
	return errors.Join(f(), setSignalMask(t.tid, mask))
}
