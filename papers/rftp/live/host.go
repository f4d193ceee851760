package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/syncbuf"
	"github.com/gorxe/gorxe/xdp/veth"
)

const (
	// readyTime is how long a server may take to start, and to end when it has no more work.
	readyTime = 30 * time.Second
	pollPause = 2 * time.Millisecond
	// maxOutput is how much of what a process prints is kept, the beginning of it.
	maxOutput = 64 << 10
)

// host is one end of the veth pair, with a thread in its namespace that starts processes. They end
// with that thread, and so with this program.
type host struct {
	end   *veth.End
	calls chan func()
	done  chan error
}

func newHost(end *veth.End) *host {
	h := &host{end: end, calls: make(chan func()), done: make(chan error, 1)}
	go func() {
		h.done <- end.Do(func() error {
			for f := range h.calls {
				f()
			}
			return nil
		})
	}()
	return h
}

func (h *host) close() error {
	close(h.calls)
	return <-h.done
}

// do runs f in the namespace.
func (h *host) do(f func() error) (err error) {
	done := make(chan struct{})
	h.calls <- func() {
		defer close(done)
		err = f()
	}
	<-done
	return err
}

// addr returns the IPv4 address of the host.
func (h *host) addr() string { return h.end.IPv4.Addr().String() }

// process is a running command.
type process struct {
	name string
	cmd  *exec.Cmd
	out  syncbuf.Buffer // standard output
	diag syncbuf.Buffer // standard error
	done chan struct{}
	err  error // of the command; valid after done
}

// start starts a command in the namespace of the host. It is killed when ctx ends.
func (h *host) start(ctx context.Context, args []string) (*process, error) {
	p := &process{name: strings.Join(args[:min(len(args), 3)], " "), done: make(chan struct{}),
		out: syncbuf.Buffer{Limit: maxOutput}, diag: syncbuf.Buffer{Limit: maxOutput}}
	p.cmd = exec.CommandContext(ctx, args[0], args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.diag
	p.cmd.WaitDelay = time.Second // children of the process may keep the pipes open
	// Signals from the terminal reach only this program, which ends the process.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p.cmd.Cancel = func() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) }
	if err := h.do(p.cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", p.name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// wait waits for the end of the process. The error contains the last line that it has printed.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		<-p.done // killed
		return context.Cause(ctx)
	}
	if p.err == nil {
		return nil
	}
	lines := strings.Split(strings.TrimSpace(p.diag.String()), "\n")
	return fmt.Errorf("%s: %w: %s", p.name, p.err, lines[len(lines)-1])
}

// cpu returns the CPU time of the process and of those of its children that it has waited for.
func (p *process) cpu() time.Duration {
	return p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime()
}

// poll waits until ready returns true, at most readyTime, and while the process runs.
func (p *process) poll(ctx context.Context, ready func() bool) error {
	late := time.After(readyTime)
	for !ready() {
		select {
		case <-p.done:
			return errors.Join(fmt.Errorf("%s has ended too early", p.name), p.wait(ctx))
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-late:
			return fmt.Errorf("%s was not ready within %v", p.name, readyTime)
		case <-time.After(pollPause):
		}
	}
	return nil
}

// said waits until the process has printed a text.
func (p *process) said(ctx context.Context, text string) error {
	return p.poll(ctx, func() bool {
		return strings.Contains(p.out.String(), text) || strings.Contains(p.diag.String(), text)
	})
}

// listens waits until a socket in the namespace of the process listens on a TCP port.
func (p *process) listens(ctx context.Context, port int) error {
	return p.poll(ctx, func() bool {
		for _, name := range []string{"tcp", "tcp6"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p.cmd.Process.Pid, name))
			if err == nil && listening(string(text), port) {
				return true
			}
		}
		return false
	})
}

// listening reports whether a table of sockets, as in /proc/net/tcp, has one that listens on a
// port.
func listening(table string, port int) bool {
	const listen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// end waits until a daemon has no children, and ends it, so that its CPU time includes theirs.
func (p *process) end(ctx context.Context) error {
	pid := p.cmd.Process.Pid
	err := p.poll(ctx, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		return err != nil || len(bytes.TrimSpace(text)) == 0
	})
	if err != nil {
		return err
	}
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("end %s: %w", p.name, err)
	}
	select {
	case <-p.done: // its status does not matter
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
