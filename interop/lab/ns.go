package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
)

// ErrPermission means that the process cannot create network namespaces.
var ErrPermission = errors.New("lab: cannot create network namespaces: run as root")

// NS is an anonymous network namespace with a thread in it. It disappears with the process.
type NS struct {
	handle netns.NsHandle
	calls  chan func()
	once   sync.Once
}

// NewNS creates a namespace with its loopback interface up.
func NewNS() (*NS, error) {
	n := &NS{calls: make(chan func())}
	ready := make(chan error)
	go osnet.Thread(func() { n.run(ready) })
	if err := <-ready; err != nil {
		if errors.Is(err, unix.EPERM) {
			return nil, fmt.Errorf("%w (%w)", ErrPermission, err)
		}
		return nil, err
	}
	return n, nil
}

// run is the thread, with which ends what was started with Pdeathsig.
func (n *NS) run(ready chan<- error) {
	h, err := netns.New() // of this thread
	if err != nil {
		ready <- fmt.Errorf("lab: create a network namespace: %w", err)
		return
	}
	n.handle = h
	ready <- setUp("lo")
	for f := range n.calls {
		f()
	}
}

// Fd is the namespace's descriptor, valid until Close.
func (n *NS) Fd() int { return int(n.handle) }

// Do runs f on the namespace's thread: sockets and interfaces are those of the namespace. f must
// not call Do.
func (n *NS) Do(f func() error) error {
	done := make(chan error, 1)
	n.calls <- func() { done <- f() }
	return <-done
}

// Start starts a command in the namespace. It is killed when the namespace is closed or the process
// ends.
func (n *NS) Start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	return n.Do(cmd.Start)
}

// Close releases the namespace. It must not be used afterwards. Closing twice has no effect.
func (n *NS) Close() {
	n.once.Do(func() {
		close(n.calls)
		_ = n.handle.Close()
	})
}

// sysctl writes a value below /proc/sys/net in the calling thread's namespace. If that fails the
// lab only becomes slower.
func sysctl(path, value string) {
	_ = os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
}
