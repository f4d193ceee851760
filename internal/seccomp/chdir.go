package seccomp

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrTrace means that this process cannot trace the calling thread, for example because a debugger
// does.
var ErrTrace = errors.New("seccomp: the thread cannot be traced")

// Chdir ends a call of chdir(2): the directory dir, a descriptor of this process, becomes the
// working directory of the calling process. With ErrTrace, the call still waits for an answer.
//
// Only a process itself can change its working directory. So this process traces the thread for a
// moment and makes it call fchdir(2) and close(2). Meanwhile, no goroutine may wait for any child
// of this process, because it would get the events of the traced thread.
func (c *Call) Chdir(dir int) error {
	if !canInject {
		return ErrTrace
	}
	runtime.LockOSThread() // a tracer is a thread
	defer runtime.UnlockOSThread()
	if err := unix.PtraceSeize(c.tid); err != nil {
		return fmt.Errorf("%w: %w", ErrTrace, err)
	}
	t := tracee{tid: c.tid}
	n, e := c.Install(dir, true)
	// The thread stops on its way out of the call.
	if err := unix.PtraceInterrupt(c.tid); err != nil {
		return errors.Join(err, c.Fail(unix.EACCES))
	}
	if err := c.Fail(unix.EACCES); err != nil {
		return err
	}
	if err := t.await(interrupted); err != nil {
		return err
	}
	defer t.detach()
	if e != nil {
		return e
	}
	return t.chdir(n)
}

// tracee is a thread that this thread traces.
type tracee struct {
	tid     int
	signals []unix.Signal // that have come meanwhile
}

// Stops of a traced thread: a signal, and an event in the higher bits.
const (
	interrupted = unix.SIGTRAP | unix.PTRACE_EVENT_STOP<<8
	atSyscall   = unix.SIGTRAP | 0x80 // PTRACE_O_TRACESYSGOOD
)

// maxStops bounds the stops between two that await expects.
const maxStops = 100

// errEnded means that the thread has ended, or is stopped all the time.
var errEnded = errors.New("seccomp: the traced thread has ended")

// await waits until the thread stops as wanted. It keeps signals that stop it for detach.
func (t *tracee) await(want unix.Signal) error {
	for range maxStops {
		stop, err := t.wait()
		switch {
		case err != nil:
			return err
		case stop == want:
			return nil
		case stop>>8 == 0 && stop != unix.SIGTRAP:
			t.signals = append(t.signals, stop)
		case want == interrupted && stop>>8 == unix.PTRACE_EVENT_STOP:
			// A signal like SIGSTOP has stopped the process.
			t.signals = append(t.signals, stop&0xff)
			return nil
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

// detach lets the thread run on, and sends the signals that have come.
func (t *tracee) detach() {
	_ = unix.PtraceDetach(t.tid) // an error means that it has ended
	for _, sig := range t.signals {
		_ = unix.Kill(t.tid, sig)
	}
}
