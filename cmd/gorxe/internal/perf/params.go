package perf

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// The limits of a test. They hold for what a user asks for, and for what a
// client asks of a server.
const (
	maxBytes       = 256 << 20 // of one message
	maxMemory      = 512 << 20 // of all buffers of one end
	maxQPs         = 256
	maxDepth       = 8192
	maxOutstanding = 1 << 16 // depth times QPs
	maxIterations  = 1_000_000_000
	minDuration    = 100 * time.Millisecond
	maxDuration    = 24 * time.Hour

	infiniteRow = 5 * time.Second // between two rows of --run_infinitely

	defaultDepth   = 128
	bwIterations   = 5000
	latIterations  = 1000
	allLargest     = 8 << 20 // the last size of -a
	recvDepth      = 512     // receives that a bandwidth test keeps posted on each QP
	outstandingOne = 16      // send depth of a latency test
)

// The kinds of atomic.
const (
	fetchAdd = "FETCH_AND_ADD"
	cmpSwap  = "CMP_AND_SWAP"
)

var atomicKinds = []string{fetchAdd, cmpSwap}

// Params is what the client asks for: the same for all runs of a session. It
// travels in the request.
type Params struct {
	Op            string   `json:"op"`
	Bytes         int      `json:"bytes"` // the largest message of all runs
	QPs           int      `json:"qps"`
	Depth         int      `json:"depth"`
	MTU           roce.MTU `json:"mtu"` // the client's upper limit; 0: none
	Bidirectional bool     `json:"bidirectional"`
	Atomic        string   `json:"atomic,omitempty"`

	op *operation // after check
}

// Run is what the client asks for in one run: Iterations a QP, or as many as fit in Duration.
type Run struct {
	Bytes      int           `json:"bytes"`
	Iterations int           `json:"iterations,omitempty"`
	Duration   time.Duration `json:"duration_ns,omitempty"`
	Endless    bool          `json:"endless,omitempty"` // more like it follow until one end is stopped, which is no failure
}

// errParams marks what is out of range, whoever asked for it.
var errParams = errors.New("bad test parameters")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errParams, fmt.Sprintf(format, args...))
}

// check refuses what is out of range and looks the operation up.
func (p *Params) check() error {
	p.op = findOp(p.Op)
	if p.op == nil {
		return refuse("no operation is called %q: choose one of %s", p.Op, strings.Join(opNames(), ", "))
	}
	switch {
	case p.Bytes < 1 || p.Bytes > maxBytes:
		return refuse("messages of %d bytes: choose 1 B to %s (-s)", p.Bytes, cli.FormatSize(maxBytes))
	case p.op.atomic && p.Bytes != wordSize:
		return refuse("atomics are of %d bytes: leave -s and -a out", wordSize)
	case p.op.atomic && p.Atomic != fetchAdd && p.Atomic != cmpSwap:
		return refuse("no atomic is called %q: choose one of %s (-A)", p.Atomic, strings.Join(atomicKinds, ", "))
	case p.QPs < 1 || p.QPs > maxQPs:
		return refuse("%d queue pairs: choose 1 to %d (-q)", p.QPs, maxQPs)
	case p.Depth < 1 || p.Depth > maxDepth:
		return refuse("send queues of depth %d: choose 1 to %d (-t)", p.Depth, maxDepth)
	case p.QPs*p.Depth > maxOutstanding:
		return refuse("%d queue pairs of depth %d: their product may be at most %d (-q, -t)", p.QPs, p.Depth, maxOutstanding)
	case p.MTU != 0 && !p.MTU.Valid():
		return refuse("path MTU %d: choose 256, 512, 1024, 2048 or 4096 (-m)", p.MTU)
	case p.op.latency && p.QPs > 1:
		return refuse("a latency test runs on one queue pair: leave -q out")
	case p.op.latency && p.Bidirectional:
		return refuse("a latency test has one direction at a time: leave -b out")
	}
	if c := p.session(); c.Memory() > maxMemory {
		return refuse("%d queue pairs with messages of %s need %s of buffers, at most %s are allowed (-q, -s)",
			p.QPs, cli.FormatSize(int64(p.Bytes)), cli.FormatSize(c.Memory()), cli.FormatSize(maxMemory))
	}
	return nil
}

// session is the session that the test needs on either end.
func (p *Params) session() session.Config {
	c := session.Config{QPs: p.QPs, SendDepth: p.Depth, Bytes: p.Bytes, MTU: p.MTU, RecvDepth: 1}
	if p.op.latency {
		c.SendDepth = outstandingOne
	}
	if p.op.recv {
		c.RecvDepth = recvDepth
	}
	return c
}

// wr is the operation of the test's work requests.
func (p *Params) wr() roce.Op {
	if p.op.atomic && p.Atomic == cmpSwap {
		return roce.OpCmpSwap
	}
	return p.op.wr
}

// check refuses a run that the session was not made for.
func (r *Run) check(p *Params) error {
	switch {
	case r.Bytes < 1 || r.Bytes > p.Bytes:
		return refuse("a run with messages of %d bytes in a session for up to %d", r.Bytes, p.Bytes)
	case r.Duration == 0 && (r.Iterations < 1 || r.Iterations > maxIterations):
		return refuse("%d iterations: choose 1 to %d (-n)", r.Iterations, maxIterations)
	case r.Duration != 0 && (r.Duration < minDuration || r.Duration > maxDuration):
		return refuse("a run of %v: choose %v to %v (-D)", r.Duration, minDuration, maxDuration)
	case r.Duration != 0 && r.Iterations != 0:
		return refuse("a run by iterations (-n) and by time (-D): choose one of them")
	}
	return nil
}

// sizes are the message sizes of -a: the powers of two from 2 B to 8 MiB.
func sizes() []int {
	var s []int
	for n := 2; n <= allLargest; n *= 2 {
		s = append(s, n)
	}
	return s
}
