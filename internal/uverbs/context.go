package uverbs

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/gorxe/gorxe/internal/abi"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/roce"
)

// Memory accesses the address space of a calling program.
type Memory interface {
	// ReadAt and WriteAt access len(p) bytes at addr. They do all or return an error.
	ReadAt(p []byte, addr uint64) error
	WriteAt(p []byte, addr uint64) error
}

// Caller is one intercepted call of a program.
type Caller interface {
	Memory
	// PID returns the ID of the process, as this process sees it; 0: it has died.
	PID() int
	// Install gives the program a duplicate of a descriptor and returns its number there.
	Install(fd int, cloexec bool) (int, error)
}

// Context is one open file of the device. Its methods may be called from several goroutines.
type Context struct {
	dev    *Device
	file   *file
	pid    int
	number uint32 // contexts are numbered as they open

	mu      sync.Mutex
	closed  bool
	objects map[uint32]any
	last    uint32 // handle
	spaces  map[int]*space
	mirrors uint64   // bytes
	qps     sync.Map // uint32 handle: *queuePair
	async   atomic.Pointer[channel]
	chans   map[int]*channel // by the descriptor's number in the program

	mute  bool  // doorbells fail; guarded by mu
	watch int32 // of bells
	bell  bell
}

// FD returns the descriptor of the file that the program gets. The caller duplicates it into the
// program. Its inode identifies the context.
func (c *Context) FD() int { return c.file.fd }

// QP returns the queue pair with this number, or nil.
func (c *Context) QP(qpn uint32) *roce.QP {
	var found *roce.QP
	c.qps.Range(func(_, v any) bool {
		if q := v.(*queuePair); uint32(q.qp.QPN()) == qpn {
			found = q.qp
		}
		return found == nil
	})
	return found
}

// add gives an object a handle. The caller holds mu.
func (c *Context) add(o any) (uint32, syscall.Errno) {
	if len(c.objects) >= maxObjects {
		return 0, syscall.ENOMEM
	}
	for {
		c.last++
		if _, used := c.objects[c.last]; !used {
			c.objects[c.last] = o
			return c.last, 0
		}
	}
}

// get returns the object of type T with this handle. The caller holds mu.
func get[T any](c *Context, handle uint32) (T, syscall.Errno) {
	o, ok := c.objects[handle].(T)
	if !ok {
		return o, syscall.EINVAL
	}
	return o, 0
}

// doomed is get for calls that destroy the object. Like the kernel, they fail with ENOENT if there
// is none.
func doomed[T any](c *Context, handle uint32) (T, syscall.Errno) {
	o, no := get[T](c, handle)
	if no != 0 {
		no = syscall.ENOENT
	}
	return o, no
}

// errnos maps errors to the numbers that the kernel returns.
var errnos = []struct {
	err   error
	errno syscall.Errno
}{
	{roce.ErrInUse, syscall.EBUSY},
	{roce.ErrNoMemory, syscall.ENOMEM},
	{roce.ErrTooMany, syscall.ENOMEM},
	{roce.ErrTooManyQPs, syscall.ENOMEM},
	{roce.ErrUnreachable, syscall.EHOSTUNREACH},
	{roce.ErrClosed, syscall.EIO},
	{roce.ErrGone, syscall.EIO},
	{roce.ErrServiceEnded, syscall.EIO},
	{roce.ErrMemoryFault, syscall.EIO},
}

func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	var no syscall.Errno
	if errors.As(err, &no) {
		return no
	}
	return syscall.EINVAL
}

// Close destroys all objects of the context. Peers of its queue pairs see them go away. Calls fail
// with EIO afterwards. Closing twice is harmless.
func (c *Context) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	// QPs use all others; windows use regions; everything uses PDs.
	for _, destroy := range []func(o any){
		func(o any) {
			if q, ok := o.(*queuePair); ok {
				_ = q.destroy()
			}
		},
		func(o any) {
			if w, ok := o.(inside.MW); ok {
				_ = w.Close()
			}
		},
		func(o any) {
			switch o := o.(type) {
			case *addressHandle:
				o.destroy()
			case *sharedQueue:
				_ = o.destroy()
			case *completionQueue:
				_ = o.destroy()
			case *memoryRegion:
				_ = o.destroy()
			}
		},
		func(o any) {
			if p, ok := o.(*roce.PD); ok {
				_ = p.Close()
			}
		},
	} {
		for _, o := range c.objects {
			destroy(o)
		}
	}
	c.objects = map[uint32]any{}
	for pid, s := range c.spaces {
		c.dev.forget(pid, s)
		s.close()
	}
	for _, ch := range c.chans {
		ch.close()
	}
	if a := c.async.Swap(nil); a != nil {
		a.close()
	}
	c.dev.bells.remove(c)
	c.file.close()
	c.dev.mu.Lock()
	delete(c.dev.contexts, c)
	c.dev.mu.Unlock()
}

// event sends an asynchronous event to the program.
func (c *Context) event(element uint64, kind uint32) bool {
	ch := c.async.Load()
	if ch == nil {
		return false
	}
	var e abi.Encoder
	e.U64(element)
	e.U32(kind, 0)
	return ch.send(e.B)
}
