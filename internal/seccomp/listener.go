package seccomp

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listener receives intercepted calls.
type Listener struct{ fd int }

// NewListener returns a Listener for the descriptor that Policy.Install returned in another
// process. It owns the descriptor.
func NewListener(fd int) *Listener {
	// SYNC_WAKE_UP (Linux 6.6) shortens the answer of a call. Older kernels work without it.
	_ = setNotifyFlags(fd, syncWakeUp)
	return &Listener{fd: fd}
}

// syncWakeUp is SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP.
const syncWakeUp = 1

// Serve passes calls to handle until handle returns false, or no process with the filter is left.
// Several goroutines may call Serve. Each handles one call at a time.
func (l *Listener) Serve(handle func(*Call) bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var n notification
	for {
		n = notification{}
		switch err := receive(l.fd, &n); {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOENT): // the thread died, or no process is left
			if l.idle() {
				return nil
			}
			continue
		case err != nil:
			return fmt.Errorf("seccomp: receive a call: %w", err)
		}
		if !handle(&Call{Nr: int(n.nr), Args: n.args, id: n.id, tid: int(n.pid), l: l}) {
			return nil
		}
	}
}

// idle reports whether no process has the filter anymore.
func (l *Listener) idle() bool { return l.polled(0, unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) }

// Pending reports whether a call waits to be received.
func (l *Listener) Pending() bool { return l.polled(unix.POLLIN, unix.POLLIN) }

// polled polls for events, without waiting, and reports whether there is one of want.
func (l *Listener) polled(events, want int16) bool {
	p := []unix.PollFd{{Fd: int32(l.fd), Events: events}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&want != 0
}

// Wait returns when no process with the filter is left.
func (l *Listener) Wait() error {
	p := []unix.PollFd{{Fd: int32(l.fd)}}
	for {
		_, err := unix.Poll(p, -1)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return os.NewSyscallError("poll", err)
		case p[0].Revents != 0:
			return nil
		}
	}
}
