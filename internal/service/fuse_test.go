package service

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Operations of the FUSE protocol, and the lengths of its headers.
const (
	fuseOpen    = 14
	fuseInit    = 26
	fuseIn      = 40 // length, operation, ID, and more
	fuseOut     = 16 // length, error, ID
	fuseInitOut = 64
	fuseOpenOut = 16
)

// stuck returns a descriptor of a file whose close does not return before the end of the test, even
// if the process is killed. Its file system does not answer FLUSH.
func stuck(t *testing.T) int {
	t.Helper()
	devFD, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Skip(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		defer unix.Close(devFD) // ends all operations
		for b := make([]byte, 1<<17); ; {
			n, err := unix.Read(devFD, b)
			if err != nil || n < fuseIn { // none, or not mounted yet
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
					continue
				}
			}
			var r []byte
			switch binary.NativeEndian.Uint32(b[4:]) {
			case fuseInit:
				r = make([]byte, fuseOut+fuseInitOut)
				binary.NativeEndian.PutUint32(r[fuseOut:], 7) // version 7.31
				binary.NativeEndian.PutUint32(r[fuseOut+4:], 31)
				binary.NativeEndian.PutUint32(r[fuseOut+20:], 4096) // bytes of a write
			case fuseOpen:
				r = make([]byte, fuseOut+fuseOpenOut)
			default:
				continue
			}
			binary.NativeEndian.PutUint32(r, uint32(len(r)))
			copy(r[8:fuseOut], b[8:])
			if _, err := unix.Write(devFD, r); err != nil {
				return
			}
		}
	}()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	type result struct {
		fd  int
		err error
	}
	opened := make(chan result)
	go func() { // the thread, and its mount namespace, end with the goroutine
		runtime.LockOSThread()
		r := result{fd: -1}
		r.err = unix.Unshare(unix.CLONE_NEWNS)
		if r.err == nil {
			r.err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if r.err == nil {
			r.err = unix.Mount("gorxe", path, "fuse", 0,
				fmt.Sprintf("fd=%d,rootmode=100600,user_id=0,group_id=0", devFD))
		}
		if r.err == nil {
			r.fd, r.err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		opened <- r
	}()
	r := <-opened
	t.Cleanup(func() {
		close(stop)
		<-stopped
		_ = unix.Close(r.fd)
	})
	if r.err != nil {
		t.Skip("mount a file system: ", r.err)
	}
	return r.fd
}

// A program cannot stop its session, and thereby the end of the process, with a descriptor that
// cannot be closed.
func TestDescriptorThatCannotBeClosed(t *testing.T) {
	fd := stuck(t)
	s := start(t, Options{})
	c := rawJoin(t, s)
	addr := s.port.Addrs()[0].Addr()
	for _, m := range []message{{Op: opMixed}, {Op: opReport, Size: 1, Frame: []byte("x")}} {
		if err := c.w.send(&m, fd); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Resolve(t.Context(), addr, addr); err != nil {
			t.Fatalf("%v after a message %q", err, m.Op)
		}
	}
}
