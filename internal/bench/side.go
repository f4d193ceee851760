package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"syscall"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// world is where a side's serve runs: its port, its sockets' interface, its CPU.
type world struct {
	cpu    int // negative: not pinned
	port   func(s *spec) (driver.Port, error)
	kernel func(s *spec) (job, error)
	used   func() time.Duration // CPU time; with two sides in one process, the calling thread's

	profile  string // where CPU profiles go: the beginning of their names; empty: nowhere
	profiles int    // how many have been written
}

// profiled runs f, with its CPU profile written: of bare frames, too, lest the compiler favour one of the two.
func (w *world) profiled(s *spec, f func() (outcome, error)) (outcome, error) {
	if w.profile == "" || (s.Kind != kindGorxe && !s.Kind.bare()) {
		return f()
	}
	side := "passive"
	if s.Active {
		side = "active"
	}
	w.profiles++
	file, err := os.Create(fmt.Sprintf("%s-%s-%d.prof", w.profile, side, w.profiles))
	if err != nil {
		return outcome{}, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return outcome{}, errors.Join(err, file.Close())
	}
	o, err := f()
	pprof.StopCPUProfile()
	return o, errors.Join(err, file.Close())
}

// job makes what spec asks for.
func (w *world) job(s *spec) (job, error) {
	if s.Kind != kindGorxe && !s.Kind.bare() {
		return w.kernel(s)
	}
	port, err := w.port(s)
	if err != nil {
		return nil, err
	}
	if s.Loss > 0 {
		port = loopback.Inject(port, s.Seed, loopback.Plan{Loss: s.Loss})
	}
	if s.Kind == kindGorxe {
		g, err := newGorxe(s, port)
		if err != nil {
			return nil, err
		}
		return g, nil
	}
	b, err := newBare(s, port)
	if err != nil {
		return nil, errors.Join(err, port.Close())
	}
	return b, nil
}

// server does what it is asked, one measurement after the other.
type server struct {
	world *world
	job   job
	spec  *spec // the job's
	halt  *halt
	done  chan reply // of a passive side's run
}

// serve reads requests until there are no more: then the parent has died, or is done.
func serve(r io.Reader, w io.Writer, world *world) error {
	s := &server{world: world}
	requests := make(chan request)
	go func() {
		defer close(requests)
		for dec := json.NewDecoder(r); ; {
			var q request
			if dec.Decode(&q) != nil {
				return
			}
			requests <- q
		}
	}()
	enc := json.NewEncoder(w)
	for q := range requests {
		answer := make(chan reply, 1)
		if q.Do == doPrepare {
			s.halt = newHalt()
		}
		go func() { answer <- s.handle(&q) }()
		var a reply
		select {
		case a = <-answer:
		case <-requests: // the parent is gone
			s.halt.set()
			<-answer
			s.handle(&request{Do: doStop})
			return nil
		}
		if err := enc.Encode(a); err != nil {
			break
		}
	}
	s.handle(&request{Do: doStop})
	return nil
}

func (s *server) handle(q *request) reply {
	a, err := s.do(q)
	if err != nil {
		a.Error = err.Error()
	}
	return a
}

var errOrder = errors.New("a side was asked for something out of order")

func (s *server) do(q *request) (reply, error) {
	if (q.Do == doPrepare) == (s.job != nil) && q.Do != doStop {
		return reply{}, errOrder
	}
	switch q.Do {
	case doPrepare:
		j, err := s.world.job(q.Spec)
		if err != nil {
			return reply{}, err
		}
		s.job, s.spec = j, q.Spec
		h := j.hello()
		return reply{Hello: &h}, nil
	case doStart:
		return s.start(q.Peer)
	case doRun:
		o, err := s.run(q.Peer, func() {})
		return reply{Outcome: &o}, err
	case doStop:
		return s.stop()
	}
	return reply{}, errOrder
}

func (s *server) run(peer *hello, ready func()) (outcome, error) {
	return onThread(s.world.cpu, func() (outcome, error) {
		before := s.world.used()
		o, err := s.world.profiled(s.spec, func() (outcome, error) { return s.job.run(peer, ready, s.halt) })
		o.CPU = s.world.used() - before
		return o, err
	})
}

// start lets a passive side run, and returns once it is ready for its peer.
func (s *server) start(peer *hello) (reply, error) {
	ready := make(chan struct{})
	done := make(chan reply, 1)
	s.done = done
	go func() {
		o, err := s.run(peer, func() { close(ready) })
		a := reply{Outcome: &o}
		if err != nil {
			a.Error = err.Error()
		}
		done <- a
	}()
	select {
	case <-ready:
		return reply{}, nil
	case a := <-done:
		s.done = nil
		if a.Error != "" {
			return reply{}, errors.New(a.Error)
		}
		return reply{}, errOrder
	}
}

// stop ends what runs and puts it away.
func (s *server) stop() (a reply, err error) {
	if s.done != nil {
		s.halt.set()
		a = <-s.done
		s.done = nil
		if a.Error != "" {
			err = errors.New(a.Error)
		}
	}
	if s.job != nil {
		err = errors.Join(err, s.job.close())
		s.job = nil
	}
	return a, err
}

// side is how the parent reaches a server. One call at a time.
type side struct {
	name string
	in   io.WriteCloser
	enc  *json.Encoder
	dec  *json.Decoder
	end  func() error // waits for the server to end, after in was closed
}

func newSide(name string, in io.WriteCloser, out io.Reader, end func() error) *side {
	return &side{name: name, in: in, enc: json.NewEncoder(in), dec: json.NewDecoder(out), end: end}
}

// call asks for something and waits for the answer. If ctx ends first, the side is of no more use.
func (s *side) call(ctx context.Context, q request) (reply, error) {
	type result struct {
		a   reply
		err error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		if r.err = s.enc.Encode(q); r.err == nil {
			r.err = s.dec.Decode(&r.a)
		}
		done <- r
	}()
	select {
	case r := <-done:
		switch {
		case r.err != nil:
			return r.a, fmt.Errorf("side %s ended too early: %w", s.name, r.err)
		case r.a.Error != "":
			return r.a, fmt.Errorf("side %s: %s", s.name, r.a.Error)
		}
		return r.a, nil
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// close ends the side, whatever it is doing.
func (s *side) close() error {
	_ = s.in.Close()
	return s.end()
}

// endPatience is how long a side may take to put things away.
const endPatience = 3 * time.Second

// startProcess starts this binary as a side in the namespace of a veth's end. It ends when its standard input does, so when the parent
// dies. A signal to the terminal's group does not reach it: it is the parent that ends it.
func startProcess(name string, end *veth.End, o *sideOptions) (*side, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, o.args(end)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	// A child is in the namespace of the thread that starts it.
	if err := end.Do(cmd.Start); err != nil {
		return nil, fmt.Errorf("start side %s: %w", name, err)
	}
	return newSide(name, in, out, func() error {
		late := time.AfterFunc(endPatience, func() { _ = cmd.Process.Kill() })
		defer late.Stop()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("side %s: %w", name, err)
		}
		return nil
	}), nil
}

// sideOptions are what a side's process has to know from the start.
type sideOptions struct {
	iface   string
	addr    string
	cpu     int
	profile string
}

// sideCommand is the hidden subcommand of bench that a side's process runs.
const sideCommand = "side"

func (o *sideOptions) args(end *veth.End) []string {
	return []string{"bench", sideCommand, "--iface", end.Iface, "--addr", end.IPv4.Addr().String(), "--cpu", strconv.Itoa(o.cpu), "--cpuprofile", o.profile}
}

// startLocal makes a side that is a goroutine of this process.
func startLocal(name string, w *world) *side {
	fromParent, in := io.Pipe()
	out, toParent := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := serve(fromParent, toParent, w)
		_ = toParent.Close()
		done <- err
	}()
	return newSide(name, in, out, func() error {
		_ = out.Close() // an answer that nobody reads
		return <-done
	})
}

// openXDP is the port of a side in a namespace.
func openXDP(iface string) func(s *spec) (driver.Port, error) {
	return func(s *spec) (driver.Port, error) {
		mode, err := xdp.ParseMode(s.Mode)
		if err != nil {
			return nil, err
		}
		return xdp.Open(iface, xdp.Options{Mode: mode})
	}
}
