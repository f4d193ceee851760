package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
)

// environment is what a server runs in: its port, its sockets, its CPU.
type environment struct {
	cpu     int // negative: not pinned
	port    func(s *spec) (driver.Port, error)
	kernel  func(s *spec) (job, error)
	cpuTime func() time.Duration // of the process, or of the thread if one process has both sides

	profile  string // beginning of the names of CPU profiles; "" means none
	profiles int    // number of written profiles
}

// profiled runs f and writes its CPU profile. Bare frames are profiled as well: a profile of gorxe
// alone would let the compiler favor gorxe.
func (e *environment) profiled(s *spec, f func() (outcome, error)) (outcome, error) {
	if e.profile == "" || (s.Kind != kindGorxe && !s.Kind.bare()) {
		return f()
	}
	side := "passive"
	if s.Active {
		side = "active"
	}
	e.profiles++
	file, err := os.Create(fmt.Sprintf("%s-%s-%d.prof", e.profile, side, e.profiles))
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

// job creates the job for a measurement.
func (e *environment) job(s *spec) (job, error) {
	if s.Kind != kindGorxe && !s.Kind.bare() {
		return e.kernel(s)
	}
	port, err := e.port(s)
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

// server handles requests, one measurement after the other.
type server struct {
	env  *environment
	job  job
	spec *spec // of job
	halt *halt
	done chan reply // result of a passive side's run
}

// serve handles requests until there are no more: the parent has closed the pipe or died.
func serve(r io.Reader, w io.Writer, env *environment) error {
	s := &server{env: env}
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
		case <-requests: // the parent has closed the pipe during the measurement
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

var errOrder = errors.New("request out of order")

func (s *server) do(q *request) (reply, error) {
	if (q.Do == doPrepare) == (s.job != nil) && q.Do != doStop {
		return reply{}, errOrder
	}
	switch q.Do {
	case doPrepare:
		j, err := s.env.job(q.Spec)
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
	return onThread(s.env.cpu, func() (outcome, error) {
		before := s.env.cpuTime()
		o, err := s.env.profiled(s.spec, func() (outcome, error) {
			return s.job.run(peer, ready, s.halt)
		})
		o.CPU = s.env.cpuTime() - before
		return o, err
	})
}

// start starts the run of a passive side and returns when it is ready for its peer.
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

// stop ends the run of a passive side and closes the job.
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
