package service

import (
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a TCP socket whose last descriptor takes a minute to close, or until the end of
// the test: it lingers, and its peer does not read.
func lingering(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	to := unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	err = unix.Connect(fd, &to)
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err == nil {
		err = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER,
			&unix.Linger{Onoff: 1, Linger: 60})
	}
	for b := make([]byte, 1<<20); err == nil; {
		_, err = unix.Write(fd, b)
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	return fd
}

// soon fails unless f returns within 10 seconds.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Errorf("%s takes longer than 10 s", what)
	}
}

// A connection that the service refuses has a descriptor whose close takes long. Other programs can
// join meanwhile.
func TestRefusedConnectionLingers(t *testing.T) {
	s := start(t, Options{})
	fd := lingering(t)
	uid := uint32(os.Getuid())
	var list []*session
	s.mu.Lock() // the descriptor is sent before the service refuses the connection
	for range maxConns / 2 {
		n := &session{s: s}
		n.cred.Uid = uid
		s.conns[n] = true
		list = append(list, n)
	}
	w := rawConn(t, s)
	err := w.send(&message{Op: opStatus}, fd)
	_ = unix.Close(fd)
	s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	expectEnd(t, w)
	soon(t, "a join", func() {
		s.mu.Lock()
		for _, n := range list {
			delete(s.conns, n)
		}
		s.mu.Unlock()
		p, err := Join(s.Path(), JoinOptions{})
		if err != nil {
			t.Errorf("Join() = %v", err)
			return
		}
		_ = p.Close()
	})
}

// A member cannot send to the service through its socket of MADs: closing what nobody has received
// could take long.
func TestMemberCannotSendMADs(t *testing.T) {
	s := start(t, Options{})
	c := rawJoin(t, s)
	if err := unix.Sendto(c.mads, []byte("x"), unix.MSG_NOSIGNAL, nil); err != unix.EPIPE {
		t.Errorf("Sendto() = %v, want EPIPE", err)
	}
}

// A descriptor whose close takes long does not delay the end of the service.
func TestCloseWhileDescriptorLingers(t *testing.T) {
	s := start(t, Options{})
	fd := lingering(t)
	s.mu.Lock() // the service gets the last descriptor
	w := rawConn(t, s)
	err := w.send(&message{Op: opLeave}, fd) // the service closes it: the program has not joined
	_ = unix.Close(fd)
	s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond) // the service receives the message
	soon(t, "Close", func() { _ = s.Close() })
}
