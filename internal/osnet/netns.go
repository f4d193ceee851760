// Package osnet provides what packages xdp, udp and veth need from the kernel: running code in
// another network namespace, creating anonymous namespaces, reading the addresses of interfaces, a
// few ethtool calls, the status of processes, blocking signals, and sleeping until a descriptor is
// readable or another goroutine wakes the sleeper.
//
// Reading order:
//
//   - netns.go: network namespaces
//   - addrs.go: addresses of interfaces
//   - sleeper.go: sleeping
//   - ethtool_unsafe.go: ethtool calls
//   - process.go: the status of a process
//   - signals.go: starting processes without signals
package osnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrAborted means that the function passed to In ended its goroutine (runtime.Goexit, which
// testing.T.FailNow calls) instead of returning.
var ErrAborted = errors.New("function ended its goroutine inside the network namespace")

// In runs f in the network namespace with file descriptor ns. If ns <= 0, it runs f in the calling
// thread's namespace.
//
// f runs on a separate thread, which ends with it, so that no other goroutine runs in the wrong
// namespace. Sockets and links that f creates stay in ns. f must not start goroutines that create
// sockets.
func In(ns int, f func() error) error {
	if ns <= 0 {
		return f()
	}
	err := ErrAborted
	Thread(func() {
		if e := unix.Setns(ns, unix.CLONE_NEWNET); e != nil {
			err = fmt.Errorf("enter network namespace: %w", e)
			return
		}
		err = f()
	})
	return err
}

// NewNS creates a network namespace without a name. It exists as long as the returned file is open,
// an interface or socket refers to it, or a process is in it. It disappears with the process.
func NewNS() (*os.File, error) {
	var f *os.File
	err := ErrAborted
	Thread(func() {
		if e := unix.Unshare(unix.CLONE_NEWNET); e != nil {
			err = fmt.Errorf("create network namespace: %w", e)
			return
		}
		// Only this thread is in the new namespace, so use thread-self instead of self.
		f, err = os.Open("/proc/thread-self/ns/net")
	})
	return f, err
}

// Thread runs f on a thread that ends with f, because its goroutine ends without unlocking it. It
// is never the main thread: the Go runtime does not end that one, and /proc/self and /proc/net
// would show its namespace from then on.
func Thread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		Thread(f) // on another one, because this goroutine occupies the main thread
		runtime.UnlockOSThread()
	}()
	<-done
}
