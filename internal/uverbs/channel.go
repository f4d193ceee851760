package uverbs

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/gorxe/gorxe/roce"
	"golang.org/x/sys/unix"
)

// Types of asynchronous events (ib_event_type).
const (
	eventCQErr       = 0
	eventQPFatal     = 1
	eventDeviceFatal = 8
	eventSRQLimit    = 15
)

var eventTypes = map[roce.EventKind]uint32{
	roce.EventQPFatal: eventQPFatal, roce.EventQPReqErr: 2, roce.EventQPAccessErr: 3,
	roce.EventCommEst: 4, roce.EventSQDrained: 5, roce.EventDeviceFatal: eventDeviceFatal,
	roce.EventPortActive: 9, roce.EventPortErr: 10, roce.EventLastWQE: 16, roce.EventGIDChange: 18,
}

// channel carries events to the program: a pipe, which the program reads without interception. This
// side keeps a second read end, with which it can take back events that the program has not read.
// Events that do not fit are lost: a pipe holds thousands, and a CQ has at most one event per
// request for it.
type channel struct {
	mu     sync.Mutex
	write  int
	read   int // the program's end
	unread int // a description of its own, non-blocking
}

func newChannel() (*channel, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	c := &channel{read: p[0], write: p[1], unread: -1}
	err := unix.SetNonblock(c.write, true)
	if err == nil {
		c.unread, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", c.read),
			unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *channel) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, fd := range []*int{&c.read, &c.write, &c.unread} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
		}
		*fd = -1
	}
}

func (c *channel) send(b []byte) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n, err := unix.Write(c.write, b)
	return err == nil && n == len(b)
}

// maxUnread is the number of events that a pipe holds. A program that writes to the pipe could
// otherwise keep takeBack busy forever.
const maxUnread = 8192

// takeBack removes the events of an object that the program has not read, and returns their number.
// size is that of an event in bytes, which starts with the object's user handle.
func (c *channel) takeBack(user uint64, size int) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var kept []byte
	b := make([]byte, size)
	for range maxUnread {
		if got, err := unix.Read(c.unread, b); err != nil || got != size {
			break
		}
		if binary.LittleEndian.Uint64(b) == user {
			n++
		} else {
			kept = append(kept, b...)
		}
	}
	for ; len(kept) >= size; kept = kept[size:] {
		_, _ = unix.Write(c.write, kept[:size])
	}
	return n
}

// reported returns how many of the asynchronous events of an object the program has read, and
// removes the others.
func (c *Context) reported(events uint32, user uint64) uint32 {
	if a := c.async.Load(); a != nil {
		events -= uint32(a.takeBack(user, 16))
	}
	return events
}
