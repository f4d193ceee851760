package ucma

import (
	"fmt"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/roce/cm"
)

// Caller is one intercepted call of a program.
type Caller interface {
	// PID returns the ID of the process, as this process sees it.
	PID() int
	// ReadAt and WriteAt access len(p) bytes at addr. They do all or return an error.
	ReadAt(p []byte, addr uint64) error
	WriteAt(p []byte, addr uint64) error
	// Nonblocking reports whether the file is in nonblocking mode.
	Nonblocking() bool
	// Defer makes the call wait until reply is called. The result of the function that handles the
	// call is then ignored.
	Defer() (reply func(int64, syscall.Errno))
}

// inode identifies a file in the system.
type inode struct{ dev, ino uint64 }

// File is one open file of the device. Its methods may be called from several goroutines.
type File struct {
	dev *Device
	fd  int
	ino inode
	pid int
	end sync.Once

	// Owner of the loop only.
	closed  bool
	raised  bool // the pipe holds a byte
	events  []*event
	waiters []*waiter
}

// event is an event for the program.
type event struct {
	id     *id    // whose event it is
	group  *group // of multicast events
	opened *id    // connection request: the new ID
	kind   uint32
	status int32 // a reason, or a negative error number
	conn   connParam
	ud     datagramParam
	buf    []byte // encoded
}

// waiter is a call of GET_EVENT that waits.
type waiter struct {
	call  Caller
	addr  uint64
	size  int
	n     int64
	reply func(int64, syscall.Errno)
}

// newPipe returns a pipe, open for reading and writing.
func newPipe() (fd int, ino inode, err error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, ino, err
	}
	defer func() {
		_ = unix.Close(p[0])
		_ = unix.Close(p[1])
	}()
	fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", p[0]),
		unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, ino, err
	}
	ino, err = inodeOf(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		_ = unix.Close(fd)
	}
	return fd, ino, err
}

func inodeOf(path string) (inode, error) {
	var st unix.Stat_t
	err := unix.Stat(path, &st)
	return inode{st.Dev, st.Ino}, err
}

// FD returns the descriptor of the pipe. The program must get another description of it: while the
// pipe is readable, there are events.
func (f *File) FD() int { return f.fd }

// Close destroys the IDs of the file. Peers see connections end. A thread that waits for an event
// keeps waiting, as in the kernel: programs close the file before they end, and do not expect an
// error. Closing twice is harmless.
func (f *File) Close() {
	f.end.Do(func() {
		d := f.dev
		_ = d.do(func(now cm.Time, m *cm.CM) syscall.Errno {
			f.closed = true
			f.waiters = nil
			for _, i := range d.ids {
				if i.file == f {
					i.destroy(now, m)
				}
			}
			f.events = nil
			delete(d.files, f)
			return 0
		})
		_ = unix.Close(f.fd)
	})
}

// push queues an event. Owner only.
func (f *File) push(e *event) {
	if f.closed {
		return
	}
	f.events = append(f.events, e)
	f.serve()
}

// serve gives events to waiting calls, and makes the file readable if events are left. Owner only.
func (f *File) serve() {
	for len(f.events) > 0 && len(f.waiters) > 0 {
		w := f.waiters[0]
		f.waiters = slices.Delete(f.waiters, 0, 1)
		e := f.take()
		f.dev.busy.Go(func() {
			if no := f.deliver(w.call, e, w.addr, w.size); no != 0 {
				w.reply(0, no)
				return
			}
			w.reply(w.n, 0)
		})
	}
	f.signal()
}

// signal makes the file readable if there are events, and not readable otherwise. Owner only.
func (f *File) signal() {
	switch has := len(f.events) > 0; {
	case f.closed || has == f.raised:
	case has:
		_, err := unix.Write(f.fd, []byte{1})
		f.raised = err == nil
	default:
		f.raised = !f.drain()
	}
}

// maxDrain is the number of reads that empty the pipe. The program may write to it faster than it
// is read.
const maxDrain = 16

// drain empties the pipe. It returns false if the program has written too much; then the file stays
// readable. Owner only.
func (f *File) drain() bool {
	b := make([]byte, 4096)
	for range maxDrain {
		if n, err := unix.Read(f.fd, b); err != nil || n < len(b) {
			return true
		}
	}
	return false
}

// take removes and encodes the oldest event. It counts as reported. Owner only.
func (f *File) take() *event {
	e := f.events[0]
	e.encode()
	f.events = slices.Delete(f.events, 0, 1)
	e.count(1)
	return e
}

func (e *event) count(n int) {
	if e.group != nil {
		e.group.reported += n
	}
	e.id.reported += n
}

// drop removes the events that a function selects. Owner only.
func (f *File) drop(selects func(*event) bool) {
	f.events = slices.DeleteFunc(f.events, selects)
	f.signal()
}

// deliver copies an event to the program. If that fails, the event is queued again.
func (f *File) deliver(c Caller, e *event, addr uint64, size int) syscall.Errno {
	if c.WriteAt(e.buf[:min(size, eventSize)], addr) == nil {
		return 0
	}
	_ = f.dev.do(func(cm.Time, *cm.CM) syscall.Errno {
		e.count(-1)
		if !e.id.dead && !f.closed {
			f.events = slices.Insert(f.events, 0, e)
			f.serve()
		}
		return 0
	})
	return syscall.EFAULT
}

// encode sets buf to the struct rdma_ucm_event_resp. Owner only.
func (e *event) encode() {
	var b encoder
	uid, handle := e.id.uid, e.id.handle
	if e.group != nil {
		uid, handle = e.group.uid, e.group.handle
	}
	if e.opened != nil {
		handle = e.opened.handle
	}
	b.U64(uid)
	b.U32(handle, e.kind, uint32(e.status))
	if e.id.datagram() {
		e.ud.encode(&b)
	} else {
		e.conn.encode(&b)
	}
	e.buf = b.pad(eventSize)
}

// getEvent waits for an event.
func (f *File) getEvent(c Caller, q *command) (int64, syscall.Errno) {
	addr := q.in.U64()
	if q.out < minEventSize {
		return 0, syscall.ENOSPC
	}
	var e *event
	no := f.dev.do(func(cm.Time, *cm.CM) syscall.Errno {
		if f.closed {
			return syscall.EBADF
		}
		if len(f.events) > 0 {
			e = f.take()
			f.signal()
		}
		return 0
	})
	switch {
	case no != 0:
		return 0, no
	case e != nil:
		return q.n, f.deliver(c, e, addr, q.out)
	case c.Nonblocking():
		return 0, syscall.EAGAIN
	}
	w := &waiter{call: c, addr: addr, size: q.out, n: q.n, reply: c.Defer()}
	no = f.dev.do(func(cm.Time, *cm.CM) syscall.Errno {
		switch {
		case f.closed:
			return syscall.EBADF
		case len(f.waiters) >= maxWaiters:
			return syscall.ENOMEM
		}
		f.waiters = append(f.waiters, w)
		f.serve()
		return 0
	})
	if no != 0 {
		w.reply(0, no)
	}
	return 0, 0
}
