//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/interop/guest/wire"
)

const (
	// stdinQueue is the number of input frames that a process may leave unread before it delays
	// others.
	stdinQueue = 1024
	// lingering is how long output is still read from what a finished command left running in the
	// background.
	lingering = 50 * time.Millisecond
)

type agent struct {
	port io.ReadWriter
	wmu  sync.Mutex // one frame at a time

	mu    sync.Mutex
	procs map[uint32]*process
}

type process struct {
	cmd   *exec.Cmd
	stdin chan []byte // nil element: end of input
	done  chan struct{}
}

func newAgent(port io.ReadWriter) *agent {
	return &agent{port: port, procs: map[uint32]*process{}}
}

// serve returns when the controller has gone.
func (a *agent) serve() error {
	uptime, _ := os.ReadFile("/proc/uptime")
	up, _, _ := strings.Cut(string(uptime), " ")
	if err := a.send(wire.Frame{Kind: wire.Hello, Payload: []byte(up)}); err != nil {
		return err
	}
	in := bufio.NewReaderSize(&patient{r: a.port}, wire.MaxPayload)
	for {
		f, err := wire.Read(in)
		if err != nil {
			return err
		}
		a.handle(f)
	}
}

// patient reads a port whose other side may not be there yet: before the first byte, end of file
// means "not yet".
type patient struct {
	r    io.Reader
	seen bool
}

func (p *patient) Read(b []byte) (int, error) {
	for {
		n, err := p.r.Read(b)
		if n > 0 {
			p.seen = true
		}
		if n > 0 || p.seen || !errors.Is(err, io.EOF) {
			return n, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (a *agent) send(f wire.Frame) error {
	a.wmu.Lock()
	defer a.wmu.Unlock()
	return wire.Write(a.port, f)
}

func (a *agent) handle(f wire.Frame) {
	if f.Kind == wire.Run {
		a.run(f)
		return
	}
	a.mu.Lock()
	p := a.procs[f.Process]
	a.mu.Unlock()
	if p == nil {
		return // it ended before the controller knew
	}
	switch f.Kind {
	case wire.Stdin:
		p.give(f.Payload)
	case wire.StdinEOF:
		p.give(nil)
	case wire.Signal:
		if len(f.Payload) == 1 {
			// The whole process group. An error means that it is gone already.
			_ = unix.Kill(-p.cmd.Process.Pid, unix.Signal(f.Payload[0]))
		}
	}
}

func (a *agent) run(f wire.Frame) {
	var c wire.Command
	err := json.Unmarshal(f.Payload, &c)
	if err == nil && len(c.Argv) == 0 {
		err = errors.New("no command")
	}
	if err != nil {
		a.exit(f.Process, wire.Outcome{Status: 127, Error: err.Error()})
		return
	}
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	cmd.Dir = c.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.WaitDelay = lingering
	cmd.Stdout = &output{a, wire.Stdout, f.Process}
	cmd.Stderr = &output{a, wire.Stderr, f.Process}
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		a.exit(f.Process, wire.Outcome{Status: 127, Error: err.Error()})
		return
	}
	p := &process{cmd: cmd, stdin: make(chan []byte, stdinQueue), done: make(chan struct{})}
	a.mu.Lock()
	a.procs[f.Process] = p
	a.mu.Unlock()
	go p.feed(stdin)
	go func() {
		err := cmd.Wait()
		a.mu.Lock()
		delete(a.procs, f.Process)
		a.mu.Unlock()
		close(p.done)
		a.exit(f.Process, outcome(cmd, err))
	}()
}

func (p *process) give(b []byte) {
	select {
	case p.stdin <- b:
	case <-p.done:
	}
}

// feed passes input on until its end. Input after the end of the process is dropped.
func (p *process) feed(w io.WriteCloser) {
	defer w.Close()
	for {
		select {
		case b := <-p.stdin:
			if b == nil {
				return
			}
			// A process that closed its input reports it by its exit status.
			_, _ = w.Write(b)
		case <-p.done:
			return
		}
	}
}

func outcome(cmd *exec.Cmd, err error) wire.Outcome {
	st := cmd.ProcessState
	if st == nil {
		return wire.Outcome{Status: 127, Error: err.Error()}
	}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return wire.Outcome{Status: 128 + int(ws.Signal())}
	}
	return wire.Outcome{Status: st.ExitCode()}
}

func (a *agent) exit(process uint32, o wire.Outcome) {
	b, err := json.Marshal(o)
	if err != nil {
		return // an int and a string always marshal
	}
	// If the controller is gone serve notices.
	_ = a.send(wire.Frame{Kind: wire.Exit, Process: process, Payload: b})
}

// output turns what a process writes into frames.
type output struct {
	a       *agent
	kind    wire.Kind
	process uint32
}

func (o *output) Write(b []byte) (int, error) {
	for n := 0; n < len(b); {
		piece := b[n:min(n+wire.MaxPayload, len(b))]
		if err := o.a.send(wire.Frame{Kind: o.kind, Process: o.process,
			Payload: piece}); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return len(b), nil
}
