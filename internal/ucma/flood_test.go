package ucma

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/roce/cm"
)

// A program that writes to its event pipe while the owner empties it does not stop the device.
func TestPipeFlood(t *testing.T) {
	p := pair(t)
	a, b := p[0], p[1]
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", a.f.FD()),
		unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	id := a.create(2, psTCP)
	a.do(cmdResolveIP, route(id, b), 0)
	a.dev.busy.Wait() // an event waits
	var stop atomic.Bool
	var writers sync.WaitGroup
	for range 4 {
		writers.Go(func() {
			for b := make([]byte, 64<<10); !stop.Load(); {
				_, _ = unix.Write(fd, b)
			}
		})
	}
	time.Sleep(10 * time.Millisecond)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.next(eventAddrResolved) // empties the pipe
		_ = a.dev.do(func(cm.Time, *cm.CM) syscall.Errno { return 0 })
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Error("the owner reads the pipe for 10 s")
	}
	stop.Store(true)
	writers.Wait()
	<-done
}

// A program must read its events.
func TestMaxEvents(t *testing.T) {
	p := pair(t)
	a, b := p[0], p[1]
	id := a.create(2, psTCP)
	set := func(n int) {
		_ = a.dev.do(func(cm.Time, *cm.CM) syscall.Errno {
			a.f.events = make([]*event, n)
			return 0
		})
	}
	set(maxEvents)
	a.fails(syscall.ENOMEM, cmdResolveIP, route(id, b), 0)
	set(0)
	a.do(cmdResolveIP, route(id, b), 0)
}
