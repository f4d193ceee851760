package osnet

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Sleeper lets the owner of a port sleep until a descriptor is readable or another goroutine calls
// Wake. No wake-up is lost: Wake sets woken and then reads sleeping, and Begin sets sleeping and
// then reads woken, so at least one of them sees the other's value.
//
// The owner calls Begin, Sleep and End. The other methods are safe for concurrent use.
type Sleeper struct {
	woken    atomic.Bool
	sleeping atomic.Bool
	timeout  unix.Timespec
	list     []unix.PollFd // scratch
	watched  int           // descriptor of Watch + 1; 0: none. Owner
	rung     bool          // see Watched. Owner

	mu    sync.Mutex
	event int // eventfd
	open  bool
}

// Open must be called first. Close must follow.
func (s *Sleeper) Open() (err error) {
	if s.event, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return fmt.Errorf("create eventfd: %w", err)
	}
	s.open = true
	return nil
}

// Event returns the first element of the list for Sleep.
func (s *Sleeper) Event() unix.PollFd {
	return unix.PollFd{Fd: int32(s.event), Events: unix.POLLIN}
}

// Watch makes Sleep return also when another descriptor is readable. A negative number ends that.
// Owner only.
func (s *Sleeper) Watch(fd int) { s.watched = max(fd, -1) + 1 }

// Watched reports whether the descriptor of Watch was readable at the end of the latest Sleep.
// Owner only.
func (s *Sleeper) Watched() bool { return s.rung }

// Begin announces that the owner is about to sleep. It returns false if Wake was called since the
// last End: the owner must not sleep then. End must follow in any case.
func (s *Sleeper) Begin() bool {
	s.sleeping.Store(true)
	return !s.woken.Load()
}

// Sleep returns when a descriptor is readable, after Wake or Signal, or after d (d < 0: no limit).
// It reports whether a descriptor of the list is readable, which may be that of Event.
func (s *Sleeper) Sleep(list []unix.PollFd, d time.Duration) bool {
	var timeout *unix.Timespec
	if d >= 0 {
		s.timeout = unix.NsecToTimespec(int64(d))
		timeout = &s.timeout
	}
	polled := list
	if s.watched > 0 {
		s.list = append(append(s.list[:0], list...),
			unix.PollFd{Fd: int32(s.watched - 1), Events: unix.POLLIN})
		polled = s.list
	}
	n, err := unix.Ppoll(polled, timeout, nil)
	for err == unix.EINTR { // the kernel has updated timeout
		n, err = unix.Ppoll(polled, timeout, nil)
	}
	s.rung = err == nil && n > 0 && s.watched > 0 && polled[len(list)].Revents != 0
	if err != nil || n == 0 {
		return false
	}
	copy(list, polled)
	if list[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(int(list[0].Fd), b[:])
	}
	return true
}

// End ends what Begin has begun.
func (s *Sleeper) End() {
	s.sleeping.Store(false)
	s.woken.Store(false)
}

// Wake ends the current sleep, or prevents the next one. It makes a system call only if the owner
// sleeps.
func (s *Sleeper) Wake() {
	s.woken.Store(true)
	if s.sleeping.Load() {
		s.Signal()
	}
}

// Signal makes the event descriptor readable. The mutex keeps Close from closing the descriptor at
// the same time; its number could then belong to another file.
func (s *Sleeper) Signal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.open {
		return
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], 1)
	_, _ = unix.Write(s.event, b[:])
}

// Close releases the descriptor. It may be called again, and without Open.
func (s *Sleeper) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open {
		s.open = false
		_ = unix.Close(s.event)
	}
}
