package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/gorxe/gorxe/internal/seccomp"
	"github.com/gorxe/gorxe/internal/sysfs"
)

// Caller is the thread that makes a call.
type Caller interface {
	// PID returns the ID of the process; 0: it has died.
	PID() int
	// ReadAt fills p from the memory of the process.
	ReadAt(p []byte, addr uint64) error
	// WriteAt copies p to the memory of the process.
	WriteAt(p []byte, addr uint64) error
	// Install installs a copy of a descriptor in the process and returns its number there.
	Install(fd int, cloexec bool) (int, error)
	// Nonblocking reports whether the file of the call is in nonblocking mode (O_NONBLOCK).
	Nonblocking() bool
	// Defer makes the call wait after the function that handles it has returned. Its result is then
	// ignored. The call ends when reply is called, once, by any goroutine.
	Defer() (reply func(int64, syscall.Errno))
}

// Device is a character device.
type Device interface {
	// Open is called for each open of the device. pid is the process.
	Open(pid int) (File, error)
}

// Executer is a Device that must know before a process executes another program.
type Executer interface {
	Device
	Executes(pid int)
}

// File is an open device. Its methods may be called by several goroutines.
type File interface {
	// FD returns the file that the program gets. It is a file on tmpfs, a memfd or a pipe, which
	// the supervisor opens again for the program, or a socket.
	FD() int
	Ioctl(c Caller, cmd, arg uint64) (int64, syscall.Errno)
	Write(c Caller, addr, n uint64) (int64, syscall.Errno)
	// Name describes a call for the trace.
	Name(c Caller, ioctl bool, cmd, arg uint64) string
	// Close is called after the last descriptor and mapping of the file in all processes is gone.
	// It is not called if FD is a socket.
	Close()
}

// Writable is a File whose writes need not be intercepted: it notices what the program writes to FD
// from a position on.
type Writable interface {
	File
	Position() int64
}

// fileID identifies a file behind a descriptor.
type fileID struct{ dev, ino uint64 }

// openFile is an open device of a program.
type openFile struct {
	File
	device uint64
}

// lookup returns the open device behind a descriptor of the program, or nil, and its attributes.
func (s *Supervisor) lookup(c *seccomp.Call, fd int) (*openFile, *unix.Stat_t) {
	s.mu.Lock()
	n := len(s.files)
	s.mu.Unlock()
	if n == 0 {
		return nil, nil
	}
	st := new(unix.Stat_t)
	if unix.Stat(fdPath(c, fd), st) != nil {
		return nil, nil
	}
	s.mu.Lock()
	o := s.files[fileID{st.Dev, st.Ino}]
	s.mu.Unlock()
	if o == nil || !c.Valid() {
		return nil, nil
	}
	return o, st
}

// openDevice opens a character device for the program.
func (s *Supervisor) openDevice(c *seccomp.Call, e sysfs.Entry, cloexec bool) {
	d := s.c.Verbs
	if e.Device == sysfs.CMNumber {
		d = s.c.CM
	}
	if d == nil {
		result(c, 0, unix.ENXIO)
		return
	}
	pid, err := processOf(c.PID())
	if err != nil || !c.Valid() {
		result(c, 0, unix.ESRCH)
		return
	}
	f, err := d.Open(pid)
	if err != nil {
		s.logf("open /%s: %v", e.Path, err)
		failWith(c, err)
		return
	}
	n, err := s.installFile(c, &openFile{f, e.Device}, cloexec)
	if err != nil {
		f.Close()
		failWith(c, err)
		return
	}
	result(c, int64(n), 0)
}

// installFile installs the file of a device in the program.
func (s *Supervisor) installFile(c *seccomp.Call, o *openFile, cloexec bool) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(o.FD(), &st); err != nil {
		return -1, err
	}
	id := fileID{st.Dev, st.Ino}
	fd, own := o.FD(), -1
	if t := st.Mode & unix.S_IFMT; t == unix.S_IFREG || t == unix.S_IFIFO {
		// A lock belongs to an open file description. The program's description has it until its
		// last descriptor and mapping is gone.
		var err error
		fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", o.FD()), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		defer unix.Close(fd)
		if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
			return -1, err
		}
		if own, err = unix.FcntlInt(uintptr(o.FD()), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return -1, err
		}
	}
	s.mu.Lock()
	s.files[id] = o
	var n int
	var err error
	if s.writesItself(c, o, fd) {
		n, err = c.Install(fd, cloexec)
	} else {
		n, err = s.installInRange(c, fd, cloexec)
	}
	if err != nil {
		delete(s.files, id)
	}
	s.mu.Unlock()
	switch {
	case own < 0:
	case err != nil:
		_ = unix.Close(own)
	default:
		go s.watch(id, o, own)
	}
	return n, err
}

// writesItself reports whether writes to the file need not be intercepted, and sets the position of
// fd, the program's description of the file.
func (s *Supervisor) writesItself(c *seccomp.Call, o *openFile, fd int) bool {
	w, ok := o.File.(Writable)
	if !ok || s.c.Trace != nil {
		return false
	}
	// A limit on the size of files applies to positions.
	var limit unix.Rlimit
	err := unix.Prlimit(c.PID(), unix.RLIMIT_FSIZE, nil, &limit)
	if err != nil || limit.Cur != unix.RLIM_INFINITY {
		return false
	}
	_, err = unix.Seek(fd, w.Position(), unix.SEEK_SET)
	return err == nil
}

// watch closes the file after the program's description of it is gone. own is another descriptor
// of the file.
func (s *Supervisor) watch(id fileID, o *openFile, own int) {
	for {
		err := unix.Flock(own, unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(own)
	s.mu.Lock()
	delete(s.files, id)
	s.mu.Unlock()
	o.Close()
}

// installInRange installs fd under a free number of the range whose calls are intercepted. The
// caller holds s.mu.
func (s *Supervisor) installInRange(c *seccomp.Call, fd int, cloexec bool) (int, error) {
	r := s.policy.FDs
	for n := r.First; n < r.First+r.Count; n++ {
		var st unix.Stat_t
		if err := unix.Lstat(fdPath(c, n), &st); errors.Is(err, unix.ENOENT) {
			return c.InstallAt(fd, n, cloexec)
		}
	}
	s.logf("the program has %d files of RDMA devices open: if it needs more, raise its limit on "+
		"open files up to %d (ulimit -n)", r.Count, maxSelect)
	return -1, unix.EMFILE
}

// ioctl answers RDMA_VERBS_IOCTL.
func (s *Supervisor) ioctl(c *seccomp.Call) {
	s.device(c, func(o *openFile, cc *caller) (int64, syscall.Errno) {
		return o.Ioctl(cc, c.Args[1], c.Args[2])
	})
}

// write answers a write to a device.
func (s *Supervisor) write(c *seccomp.Call) {
	s.device(c, func(o *openFile, cc *caller) (int64, syscall.Errno) {
		return o.Write(cc, c.Args[1], c.Args[2])
	})
}

// device answers a call on a device with the result of f, and lets the kernel execute calls on
// other files.
func (s *Supervisor) device(c *seccomp.Call, f func(*openFile, *caller) (int64, syscall.Errno)) {
	o, _ := s.lookup(c, int(int32(c.Args[0])))
	if o == nil {
		resume(c)
		return
	}
	s.deviceCalls.Add(1)
	cc := &caller{Call: c}
	if s.c.Trace == nil {
		if v, e := f(o, cc); !cc.deferred {
			result(c, v, e)
		}
		return
	}
	cc.done = s.traced(o, cc)
	if v, e := f(o, cc); !cc.deferred {
		cc.done(v, e)
		result(c, v, e)
	}
}

// traced returns the function that writes the line of the trace after the call.
func (s *Supervisor) traced(o *openFile, cc *caller) func(int64, syscall.Errno) {
	c := cc.Call
	name := o.Name(cc, c.Nr == unix.SYS_IOCTL, c.Args[1], c.Args[2])
	start := time.Now()
	return func(v int64, e syscall.Errno) {
		text := strconv.FormatInt(v, 10)
		if e != 0 {
			text = "-1 " + unix.ErrnoName(e)
		}
		s.traceMu.Lock()
		defer s.traceMu.Unlock()
		fmt.Fprintf(s.c.Trace, "%d %s = %s <%d us>\n", c.PID(), name, text,
			time.Since(start).Microseconds())
	}
}

// caller implements Caller.
type caller struct {
	*seccomp.Call
	deferred bool
	done     func(int64, syscall.Errno)
	once     sync.Once
	pid      int
}

// PID implements Caller.
func (c *caller) PID() int {
	c.once.Do(func() {
		pid, err := processOf(c.Call.PID())
		if err != nil || !c.Valid() {
			pid = 0 // the thread has died, and its ID may be that of another one
		}
		c.pid = pid
	})
	return c.pid
}

// Nonblocking implements Caller.
func (c *caller) Nonblocking() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", c.Call.PID(), int32(c.Args[0])))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "flags:"); ok {
			flags, _ := strconv.ParseInt(strings.TrimSpace(v), 8, 64)
			return flags&unix.O_NONBLOCK != 0
		}
	}
	return false
}

// SetPosition sets the position of the open file description that the call is about.
func (c *caller) SetPosition(pos int64) error {
	p, err := unix.PidfdOpen(c.PID(), 0)
	if err != nil {
		return err
	}
	defer unix.Close(p)
	fd, err := unix.PidfdGetfd(p, int(int32(c.Args[0])), 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if !c.Valid() {
		return unix.ESRCH
	}
	_, err = unix.Seek(fd, pos, unix.SEEK_SET)
	return err
}

// Defer implements Caller.
func (c *caller) Defer() func(int64, syscall.Errno) {
	c.deferred = true
	return func(v int64, e syscall.Errno) {
		if c.done != nil {
			c.done(v, e)
		}
		result(c.Call, v, e)
	}
}

// processOf returns the process of a thread.
func processOf(tid int) (int, error) {
	words, err := osnet.ProcessStatus(tid, "Tgid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(words[0])
}

// execute lets the kernel execute a program.
func (s *Supervisor) execute(c *seccomp.Call) {
	s.mu.Lock()
	n := len(s.files)
	s.mu.Unlock()
	if d, ok := s.c.Verbs.(Executer); ok && n > 0 {
		if pid, err := processOf(c.PID()); err == nil {
			d.Executes(pid)
		}
	}
	resume(c)
}
