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

// Limits of a test. They apply to what a user chooses and to what a client requests from a server.
const (
	maxBytes       = 256 << 20 // per message
	maxMemory      = 512 << 20 // all buffers of one side
	maxQPs         = 256
	maxDepth       = 8192
	maxOutstanding = 1 << 16 // Depth times QPs
	maxIterations  = 1_000_000_000
	minDuration    = 100 * time.Millisecond
	maxDuration    = 24 * time.Hour
)

// Sizes and depths.
const (
	DefaultDepth = 128
	LargestSize  = 8 << 20 // last size of Sizes
	recvDepth    = 512     // receives that a bandwidth test keeps posted on each queue pair
	latencyDepth = 16      // depth of a latency test's send queue
)

// The kinds of atomic operation.
const (
	fetchAdd = "FETCH_AND_ADD"
	cmpSwap  = "CMP_AND_SWAP"
)

var atomicKinds = []string{fetchAdd, cmpSwap}

// Params describes a session. The client sends it in its request. It applies to all runs.
type Params struct {
	Op            string   `json:"op"`
	Bytes         int      `json:"bytes"` // largest message of all runs
	QPs           int      `json:"qps"`
	Depth         int      `json:"depth"` // outstanding work requests per queue pair
	MTU           roce.MTU `json:"mtu"`   // upper limit of the path MTU; 0: none
	Bidirectional bool     `json:"bidirectional"`
	Atomic        string   `json:"atomic,omitempty"`

	Operation *Operation `json:"-"` // set by Check
}

// Run describes one run: a number of iterations per queue pair, or a duration.
type Run struct {
	Bytes      int           `json:"bytes"`
	Iterations int           `json:"iterations,omitempty"`
	Duration   time.Duration `json:"duration_ns,omitempty"`
	// Endless means that equal runs follow until one side is stopped, which is not an error.
	Endless bool `json:"endless,omitempty"`
}

// ErrParams means that parameters are out of range.
var ErrParams = errors.New("bad test parameters")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrParams, fmt.Sprintf(format, args...))
}

// Check sets Operation. It returns an error if a parameter is out of range.
func (p *Params) Check() error {
	o := findOperation(p.Op)
	p.Operation = o
	if o == nil {
		return refuse("no operation is called %q: choose one of %s", p.Op,
			strings.Join(OperationNames(), ", "))
	}
	switch {
	case p.Bytes < 1 || p.Bytes > maxBytes:
		return refuse("messages of %d bytes: choose 1 B to %s (-s)", p.Bytes,
			cli.FormatSize(maxBytes))
	case o.Atomic && p.Bytes != AtomicBytes:
		return refuse("atomics have %d bytes: do not use -s or -a", AtomicBytes)
	case o.Atomic && p.Atomic != fetchAdd && p.Atomic != cmpSwap:
		return refuse("no atomic is called %q: choose one of %s (-A)", p.Atomic,
			strings.Join(atomicKinds, ", "))
	case p.QPs < 1 || p.QPs > maxQPs:
		return refuse("%d queue pairs: choose 1 to %d (-q)", p.QPs, maxQPs)
	case p.Depth < 1 || p.Depth > maxDepth:
		return refuse("send queues of depth %d: choose 1 to %d (-t)", p.Depth, maxDepth)
	case p.QPs*p.Depth > maxOutstanding:
		return refuse("%d queue pairs of depth %d: their product must not exceed %d (-q, -t)",
			p.QPs, p.Depth, maxOutstanding)
	case p.MTU != 0 && !p.MTU.Valid():
		return refuse("path MTU %d: choose 256, 512, 1024, 2048 or 4096 (-m)", p.MTU)
	case o.Latency && p.QPs > 1:
		return refuse("a latency test uses one queue pair: do not use -q")
	case o.Latency && p.Bidirectional:
		return refuse("a latency test uses one direction at a time: do not use -b")
	}
	if c := p.SessionConfig(); c.Memory() > maxMemory {
		return refuse("%d queue pairs with messages of %s need %s of buffers: at most %s are allowed (-q, -s)",
			p.QPs, cli.FormatSize(int64(p.Bytes)), cli.FormatSize(c.Memory()),
			cli.FormatSize(maxMemory))
	}
	return nil
}

// SessionConfig returns the session that either side of the test needs. The caller sets GID.
func (p *Params) SessionConfig() session.Config {
	c := session.Config{QPs: p.QPs, SendDepth: p.Depth, Bytes: p.Bytes, MTU: p.MTU, RecvDepth: 1}
	if p.Operation.Latency {
		c.SendDepth = latencyDepth
	}
	if p.Operation.Recv {
		c.RecvDepth = recvDepth
	}
	return c
}

// op returns the operation of the test's work requests.
func (p *Params) op() roce.Op {
	if p.Operation.Atomic && p.Atomic == cmpSwap {
		return roce.OpCmpSwap
	}
	return p.Operation.Op
}

// Batch returns the number of work requests that are posted together, of which the last is
// signaled. It is at most half of the queue, so that one half completes while the other is being
// sent, and smaller for large messages.
func (p *Params) Batch(bytes int) int {
	return max(1, min(MaxBatch, p.Depth/2, batchBytes/bytes))
}

// ReducedMTU returns the path MTU that was requested if the actual one is smaller, and 0 otherwise.
func (p *Params) ReducedMTU(actual roce.MTU) roce.MTU {
	if p.MTU > actual {
		return p.MTU
	}
	return 0
}

// check returns an error if the session cannot perform the run.
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

// Sizes returns the message sizes of a test of all sizes: the powers of two from 2 B to 8 MiB.
func Sizes() []int {
	var s []int
	for n := 2; n <= LargestSize; n *= 2 {
		s = append(s, n)
	}
	return s
}
