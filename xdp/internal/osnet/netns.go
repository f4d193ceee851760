// Package osnet holds the few things that the AF_XDP driver and its veth
// helper both need from the kernel and that the netlink library has not:
// running code in another network namespace, making namespaces that have no
// name, and some ethtool calls.
package osnet

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// ErrAborted says that the function handed to In ended its goroutine
// (runtime.Goexit, which testing.T.FailNow uses) instead of returning.
var ErrAborted = errors.New("function ended its goroutine inside the network namespace")

// In runs f in the network namespace ns, a file descriptor; with ns <= 0 it
// just calls f, in whatever namespace the caller's thread is.
//
// The work is done on a thread of its own that is never used again: the
// goroutine ends without unlocking it, so the Go runtime ends the thread, and
// no other goroutine can be scheduled into the wrong namespace. Sockets and
// links made by f stay in ns. f must not start goroutines that make sockets.
func In(ns int, f func() error) error {
	if ns <= 0 {
		return f()
	}
	err := ErrAborted
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if e := unix.Setns(ns, unix.CLONE_NEWNET); e != nil {
			err = fmt.Errorf("enter network namespace: %w", e)
			return
		}
		err = f()
	}()
	<-done
	return err
}

// NewNS makes a network namespace without a name. It lives as long as
// the returned file, an interface's or socket's reference, or a process in it
// does; so when the process dies, however it dies, it is gone.
func NewNS() (*os.File, error) {
	var f *os.File
	err := ErrAborted
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if e := unix.Unshare(unix.CLONE_NEWNET); e != nil {
			err = fmt.Errorf("make network namespace: %w", e)
			return
		}
		// thread-self, not self: only this thread has moved.
		f, err = os.Open("/proc/thread-self/ns/net")
	}()
	<-done
	return f, err
}
