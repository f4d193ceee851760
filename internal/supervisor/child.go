package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
)

// child is the process of the program.
type child struct {
	pid     int
	reaped  bool          // the process has ended, and its ID may be that of another one
	limit   int           // on its open files
	mask    unix.Sigset_t // signals that the program blocks when it starts
	signals chan os.Signal
	release chan struct{} // ends the thread that started the process
}

// startChild starts a process that gets SIGKILL when this process ends. It inherits extra under the
// same number, so that other descriptors that the user passes to the program keep theirs. If ctx
// has ended, startChild returns its cause.
func startChild(ctx context.Context, path string, args, env []string, extra *os.File) (*child,
	error) {
	c := &child{signals: make(chan os.Signal, 64), release: make(chan struct{})}
	if _, err := unix.FcntlInt(extra.Fd(), unix.F_SETFD, 0); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	c.subscribe()
	if ctx.Err() != nil { // a signal has come before; a later one is passed to the program
		signal.Stop(c.signals)
		return nil, context.Cause(ctx)
	}
	started := make(chan error)
	go func() {
		// The kernel sends the signal when the thread ends that started the process.
		runtime.LockOSThread()
		attr := &syscall.ProcAttr{
			Env:   env,
			Files: []uintptr{0, 1, 2},
			Sys:   &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Ptrace: true},
		}
		var err error
		// A traced process stops at each signal that it does not block. Before execve that would be
		// for good, because until then this thread, its tracer, waits in clone(2). It could even be
		// ended, and stoppedLimit would collect its status. The shim restores the mask.
		e := osnet.WithoutSignals(func(before unix.Sigset_t) {
			c.mask = before
			if c.pid, err = syscall.ForkExec(path, args, attr); err == nil {
				c.limit = stoppedLimit(c.pid)
				return
			}
			attr.Sys.Ptrace = false // a container can forbid it
			c.pid, err = syscall.ForkExec(path, args, attr)
			c.limit = maxSelect
		})
		started <- errors.Join(err, e)
		<-c.release
	}()
	if err := <-started; err != nil {
		close(c.release)
		signal.Stop(c.signals)
		return nil, fmt.Errorf("start the program: %w", err)
	}
	return c, nil
}

// stoppedLimit returns the limit on open files of a traced process that has stopped in execve, and
// lets it run without tracing.
func stoppedLimit(pid int) int {
	// A Go program raises its own limit when it starts, and restores it for a process that it
	// executes. So neither this process nor the running shim knows the limit of the program.
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	limit := unix.Rlimit{Cur: maxSelect}
	_ = unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &limit)
	_ = unix.PtraceDetach(pid)
	return int(min(limit.Cur, maxSelect))
}

// forwarded are the signals that the program gets as well. A terminal sends SIGINT, SIGQUIT and
// SIGTSTP to the program itself.
var forwarded = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM,
	unix.SIGCONT, unix.SIGWINCH,
}

func (c *child) subscribe() {
	for _, sig := range forwarded {
		if !signal.Ignored(sig) { // SIGHUP under nohup, SIGINT of background jobs of scripts
			signal.Notify(c.signals, sig)
		}
	}
	signal.Notify(c.signals, unix.SIGCHLD)
	settle()
}

// settle waits until the signals that this process has received are in the channels of Notify.
func settle() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	signal.Stop(ch) // waits for all
}

// terminating are the signals that end a program that has just started.
var terminating = []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM}

// pending returns the signals for this process that no thread has received yet.
func pending() uint64 {
	words, err := osnet.ProcessStatus(os.Getpid(), "ShdPnd")
	if err != nil {
		return 0
	}
	set, _ := strconv.ParseUint(words[0], 16, 64)
	return set
}

// ended returns a signal that was to end the program, or 0. It leaves other signals in the channel.
func (c *child) ended() syscall.Signal {
	set := pending() // a busy host can take milliseconds to wake the thread that gets a signal
	for _, sig := range terminating {
		if set&(1<<(sig-1)) != 0 && !signal.Ignored(sig) {
			return sig
		}
	}
	settle()
	for range len(c.signals) {
		sig := <-c.signals
		if s := sig.(syscall.Signal); slices.Contains(terminating, s) {
			return s
		}
		select {
		case c.signals <- sig:
		default: // many have come meanwhile
		}
	}
	return 0
}

// close ends the child if it still runs.
func (c *child) close() {
	signal.Stop(c.signals)
	if !c.reaped {
		_ = unix.Kill(c.pid, unix.SIGKILL)
	}
	close(c.release)
}

// signaled is the error of a start that a signal of the terminal has ended: the shim gets it, too.
// The value is the exit status.
type signaled int

func (s signaled) Error() string { return fmt.Sprintf("ended by signal %d", int(s)-128) }

// abandon ends a child that has not executed the program because of err, and returns why.
func (c *child) abandon(err error) error {
	_ = unix.Kill(c.pid, unix.SIGKILL) // no effect if it has ended
	if st := c.await(); st > 128 && st != 128+int(unix.SIGKILL) {
		err = signaled(st)
	}
	c.close()
	return err
}

// patience is how long processes may outlive the program that started them without a message.
const patience = 3 * time.Second

// wait forwards signals until all processes have ended, and returns the status of the program.
func (c *child) wait(s *Supervisor) (status int, err error) {
	idle := make(chan error, 1)
	go func() { idle <- s.l.Wait() }()
	status = -1
	var late <-chan time.Time
	for {
		select {
		case err := <-s.fatal:
			return statusFailure, err
		case err := <-idle:
			if status < 0 { // the filter of a process ends before the process
				status = c.await()
			}
			return status, err
		case <-late:
			s.logf("the program has ended, but processes that it started have not: "+
				"waiting for them (kill %d ends them)", os.Getpid())
		case sig := <-c.signals:
			switch {
			case sig == unix.SIGCHLD:
				s.reaping.Lock()
				st, ok := c.reap()
				s.reaping.Unlock()
				if ok {
					status, late = st, time.After(patience)
				}
			case fromTerminal(sig):
			case status >= 0:
				signalDescendants(sig.(syscall.Signal))
			default:
				_ = unix.Kill(c.pid, sig.(syscall.Signal))
			}
		}
	}
}

// await waits for the end of the program and returns its status. It also collects other processes
// that have ended: a process that was traced (Call.Chdir) has to be collected by its tracer first.
func (c *child) await() int {
	var ws unix.WaitStatus
	for {
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err == nil && pid != c.pid:
		case err != nil:
			return statusFailure
		default:
			c.reaped = true
			return statusOf(ws)
		}
	}
}

// statusOf returns the exit status of a process that has ended.
func statusOf(ws unix.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// reap collects processes that have ended: the program, and orphans. ok means that it has collected
// the program.
func (c *child) reap() (status int, ok bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil || pid <= 0:
			return status, ok
		case pid != c.pid:
		default:
			c.reaped = true
			status, ok = statusOf(ws), true
		}
	}
}

// fromTerminal reports whether a signal probably came from the terminal, which also sent it to the
// program.
func fromTerminal(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGWINCH:
	default:
		return false
	}
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
