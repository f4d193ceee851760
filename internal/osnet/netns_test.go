package osnet

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The main thread stays in its namespace: it does not end with a goroutine, and /proc/self and
// /proc/net show its namespace.
func TestInMainThread(t *testing.T) {
	before := netOf(t, "self")
	onMain(t, func() {
		ns, err := NewNS()
		if errors.Is(err, unix.EPERM) {
			t.Log("needs root to create network namespaces")
			return
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		var inside string
		if err := In(int(ns.Fd()), func() error {
			inside = netOf(t, "thread-self")
			return nil
		}); err != nil || inside == before {
			t.Errorf("In() = %v, and has run the function in %s, want another one", err, inside)
		}
		if err := In(int(ns.Fd()), func() error {
			runtime.Goexit()
			return nil
		}); !errors.Is(err, ErrAborted) {
			t.Errorf("In() = %v for a function that ends its goroutine, want ErrAborted", err)
		}
	})
	if now := netOf(t, "self"); now != before {
		t.Errorf("the main thread is in %s, want %s", now, before)
	}
}

// netOf returns the network namespace of this process or thread.
func netOf(t *testing.T, who string) string {
	name, err := os.Readlink("/proc/" + who + "/ns/net")
	if err != nil {
		t.Error(err)
	}
	return name
}

// onMain runs f in a goroutine on the main thread. If f starts a goroutine and waits for it, it
// runs there, too.
func onMain(t *testing.T, f func()) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	// The main thread may be the one that waits for the network poller. A timer ends that.
	for range 1000 {
		if tryOnMain(f) {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatal("no goroutine runs on the main thread")
}

// tryOnMain runs f if one of many goroutines, each on a thread of its own, is on the main thread.
func tryOnMain(f func()) (ran bool) {
	const threads = 64 // more than are idle
	var ready, ended sync.WaitGroup
	ready.Add(threads)
	for range threads {
		ended.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			ready.Wait()
			runtime.UnlockOSThread()
			if unix.Gettid() == unix.Getpid() {
				ran = true
				f()
			}
		})
	}
	ended.Wait()
	return ran
}
