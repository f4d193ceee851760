package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/interop/guest/wire"
)

// Result is how a program ended.
type Result struct {
	Status         int // exit status; 128 + number for a signal; 127 if it could not be started
	Stdout, Stderr string
}

// StatusGone replaces the exit status if the machine ended first.
const StatusGone = -1

// maxOutput bounds the recorded output of a program; the rest is dropped.
const maxOutput = 16 << 20

// OK reports whether the program ended with status 0.
func (r *Result) OK() bool { return r.Status == 0 }

// Err returns nil, or an error with the program's status and output.
func (r *Result) Err() error {
	if r.OK() {
		return nil
	}
	return fmt.Errorf("exit status %d\n%s%s", r.Status, r.Stdout, r.Stderr)
}

// Process is a program that runs in a guest.
type Process struct {
	vm     *VM
	id     uint32
	stdout *pipe
	stderr *pipe
	done   chan struct{}
	result Result // valid once done is closed
	err    error
}

// Start starts a program. The first word is looked up in the guest's PATH.
func (v *VM) Start(argv ...string) (*Process, error) {
	p := &Process{vm: v, stdout: newPipe(), stderr: newPipe(), done: make(chan struct{})}
	v.mu.Lock()
	if v.procs == nil {
		v.mu.Unlock()
		return nil, ErrGone
	}
	p.id = v.next
	v.next++
	v.procs[p.id] = p
	v.mu.Unlock()
	b, err := json.Marshal(wire.Command{Argv: argv, Dir: "/root"})
	if err == nil {
		err = v.send(wire.Frame{Kind: wire.Run, Process: p.id, Payload: b})
	}
	if err != nil {
		v.mu.Lock()
		delete(v.procs, p.id)
		v.mu.Unlock()
		return nil, err
	}
	return p, nil
}

// Exec runs a shell script and waits for its end. After timeout it is killed, and Exec returns its
// output and context.DeadlineExceeded.
func (v *VM) Exec(script string, timeout time.Duration) (Result, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	p, err := v.Start("sh", "-c", script)
	if err != nil {
		return Result{Status: StatusGone}, err
	}
	r, err := p.Wait(ctx)
	if err != nil && errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("guest: %q still ran after %v: %w", script, timeout, err)
	}
	return r, err
}

// Put writes a file in the guest.
func (v *VM) Put(ctx context.Context, path string, perm os.FileMode, content io.Reader) error {
	p, err := v.Start("sh", "-c",
		fmt.Sprintf("cat > '%s' && chmod %o '%s'", path, perm.Perm(), path))
	if err != nil {
		return err
	}
	if _, err := io.Copy(p.Stdin(), content); err != nil {
		return errors.Join(err, p.Signal(syscall.SIGKILL))
	}
	if err := p.CloseStdin(); err != nil {
		return err
	}
	r, err := p.Wait(ctx)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return fmt.Errorf("guest: write %s: %w", path, err)
	}
	return nil
}

// Stdin returns the program's standard input.
func (p *Process) Stdin() io.Writer { return stdin{p} }

type stdin struct{ p *Process }

func (s stdin) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		piece := b[n:min(n+wire.MaxPayload, len(b))]
		if err := s.p.vm.send(wire.Frame{Kind: wire.Stdin, Process: s.p.id,
			Payload: piece}); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return len(b), nil
}

// CloseStdin ends the program's standard input.
func (p *Process) CloseStdin() error {
	return p.vm.send(wire.Frame{Kind: wire.StdinEOF, Process: p.id})
}

// Stdout reads the program's output as it arrives. What is read from it is missing in Wait's
// Result.
func (p *Process) Stdout() io.Reader { return p.stdout }

// Signal sends a signal to the program and its children.
func (p *Process) Signal(s syscall.Signal) error {
	return p.vm.send(wire.Frame{Kind: wire.Signal, Process: p.id, Payload: []byte{byte(s)}})
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait returns how the program ended. If ctx is done first the program is killed, and Wait returns
// its output and ctx's error.
func (p *Process) Wait(ctx context.Context) (Result, error) {
	const mercy = 2 * time.Second // for the kill to take effect
	select {
	case <-p.done:
	case <-ctx.Done():
		if p.Signal(syscall.SIGKILL) == nil {
			select {
			case <-p.done:
			case <-time.After(mercy):
			}
		}
		return Result{Status: StatusGone, Stdout: p.stdout.rest(), Stderr: p.stderr.rest()},
			ctx.Err()
	}
	r := p.result
	r.Stdout, r.Stderr = p.stdout.rest(), p.stderr.rest()
	return r, p.err
}

// take handles a frame from the agent.
func (p *Process) take(f wire.Frame) {
	switch f.Kind {
	case wire.Stdout:
		p.stdout.put(f.Payload)
	case wire.Stderr:
		p.stderr.put(f.Payload)
	case wire.Exit:
		var o wire.Outcome
		err := json.Unmarshal(f.Payload, &o)
		if err == nil && o.Error != "" {
			err = fmt.Errorf("guest: %s", o.Error)
		}
		p.end(Result{Status: o.Status}, err)
	}
}

// end is called once, by whichever goroutine removed the process from the VM's list.
func (p *Process) end(r Result, err error) {
	p.result, p.err = r, err
	p.stdout.close()
	p.stderr.close()
	close(p.done)
}

// pipe is an unbounded buffer between the dispatcher, which must not wait, and a reader.
type pipe struct {
	mu    sync.Mutex
	more  *sync.Cond
	b     bytes.Buffer
	ended bool
}

func newPipe() *pipe {
	p := new(pipe)
	p.more = sync.NewCond(&p.mu)
	return p
}

func (p *pipe) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.b.Write(b[:min(len(b), max(0, maxOutput-p.b.Len()))])
	p.more.Broadcast()
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.more.Broadcast()
}

func (p *pipe) Read(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.b.Len() == 0 && !p.ended {
		p.more.Wait()
	}
	return p.b.Read(b)
}

func (p *pipe) rest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.b.String()
	p.b.Reset()
	return s
}
