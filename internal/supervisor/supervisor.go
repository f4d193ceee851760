package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/nldev"
	"github.com/gorxe/gorxe/internal/seccomp"
	"github.com/gorxe/gorxe/internal/sysfs"
)

// Config says what to run.
type Config struct {
	Path string   // of the program
	Args []string // with the name of the program
	Env  []string

	Tree *sysfs.Tree
	// Files and Netlink return the current state of the device. Several goroutines call them.
	Files   func() sysfs.Device
	Netlink func() nldev.Device
	Verbs   Device
	CM      Device // nil: there is no rdma_cm

	Trace io.Writer // one line for each call on a character device; nil: none
	Log   io.Writer // messages for the user
}

// Stats counts intercepted calls.
type Stats struct {
	Calls   uint64 `json:"calls"`   // all
	Devices uint64 `json:"devices"` // on character devices
}

// Supervisor runs one program.
type Supervisor struct {
	c      Config
	l      *seccomp.Listener
	policy seccomp.Policy

	calls, deviceCalls atomic.Uint64
	waiting, running   atomic.Int32 // goroutines that wait for calls, and all that answer them
	guarded            atomic.Bool  // guard looks at waiting soon
	readable           atomic.Bool  // the memory of the program has been read once
	entered            atomic.Bool  // a working directory may be in the tree
	fatal              chan error   // the reason to end the program
	provider           provider

	active sync.RWMutex // held for reading while a call is handled

	reaping sync.Mutex // held while waiting for a child, or for a traced thread

	mu      sync.Mutex // also serializes the choice of descriptor numbers
	files   map[fileID]*openFile
	traceMu sync.Mutex
	shown   sysfs.Device // state in the tree
}

// New returns a supervisor.
func New(c Config) *Supervisor {
	return &Supervisor{c: c, files: map[fileID]*openFile{}, fatal: make(chan error, 1)}
}

// Stats returns the counters.
func (s *Supervisor) Stats() Stats { return Stats{s.calls.Load(), s.deviceCalls.Load()} }

// Goroutines that answer calls. The kernel wakes all that wait for the next one, so normally only
// one waits. A call can take seconds, for example if it waits for the address of a peer. To not
// delay others, another goroutine starts when none has waited for a moment.
const (
	maxServers = 512
	maxBusy    = time.Millisecond // for which no goroutine waits
)

// startServer starts a goroutine that answers calls.
func (s *Supervisor) startServer() {
	s.waiting.Add(1)
	s.running.Add(1)
	go func() {
		defer s.running.Add(-1)
		err := s.l.Serve(func(c *seccomp.Call) bool {
			s.calls.Add(1)
			if s.waiting.Add(-1) == 0 && !s.guarded.Swap(true) {
				s.guard()
			}
			s.handle(c)
			return s.waitAgain()
		})
		if err != nil {
			s.fail(err)
		}
	}()
}

// waitAgain reports whether a goroutine that has answered a call waits for the next one.
func (s *Supervisor) waitAgain() bool { return s.waiting.CompareAndSwap(0, 1) }

// guard starts another goroutine after maxBusy if none waits, and either one call took all that
// time or a call waits. If calls only come and go, it looks again after maxBusy.
func (s *Supervisor) guard() {
	calls := s.calls.Load()
	time.AfterFunc(maxBusy, func() {
		busy := s.waiting.Load() == 0
		if busy && s.calls.Load() != calls && !s.l.Pending() {
			s.guard()
			return
		}
		s.guarded.Store(false)
		if busy && s.running.Load() < maxServers {
			s.startServer()
		}
	})
}

// Run starts the program, forwards signals, and returns the exit status as a shell does: 128 plus
// the number of the signal if one ended the program. If ctx has ended, Run returns its cause and
// does not start the program. Later, ctx has no effect.
func (s *Supervisor) Run(ctx context.Context) (status int, err error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("become the parent of orphans: %w", err)
	}
	child, err := s.start(ctx)
	if sig := signaled(0); errors.As(err, &sig) {
		return int(sig), nil // as if it had ended the program
	} else if err != nil {
		return 0, err
	}
	defer child.close()
	status, err = child.wait(s)
	s.active.Lock() // for good: after Run no call uses the tree or the devices
	if name := s.provider.missing(); name != "" {
		s.logf("the program's libibverbs looked for %s, its provider for the device, and did not "+
			"find it: install it (Debian and Ubuntu: ibverbs-providers, Fedora: libibverbs)", name)
	}
	return status, err
}

// fail ends the program because of err.
func (s *Supervisor) fail(err error) {
	select {
	case s.fatal <- err:
	default:
	}
}

// policy returns the calls that are intercepted, for a program with a limit on its open files.
func policy(limit int) seccomp.Policy {
	return seccomp.Policy{
		Calls:   append(seccomp.PathCalls(), unix.SYS_EXECVE, unix.SYS_EXECVEAT),
		FDCalls: []int{unix.SYS_WRITE, unix.SYS_SENDTO, unix.SYS_SENDMSG},
		FDs:     descriptors(limit),
		Ioctl:   verbsIoctl,
		Sockets: []seccomp.Socket{{Family: unix.AF_NETLINK, Protocol: nldev.Protocol}},
	}
}

// verbsIoctl is the command RDMA_VERBS_IOCTL.
const verbsIoctl = 0xc0181b01

// logf writes a message for the user.
func (s *Supervisor) logf(format string, args ...any) {
	w := s.c.Log
	if w == nil {
		w = os.Stderr
	}
	fmt.Fprintf(w, "gorxe run: "+format+"\n", args...)
}
