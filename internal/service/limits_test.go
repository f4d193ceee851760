package service

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/udp"
)

// rawConn connects to a service without joining it.
func rawConn(t *testing.T, s *Server) *wire {
	t.Helper()
	c, err := dial(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return newWire(c)
}

// expectEnd waits until the service closes a connection.
func expectEnd(t *testing.T, w *wire) {
	t.Helper()
	var m message
	if _, err := w.receive(&m); !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("receive() = %v, %+v, want the end of the connection", err, m)
	}
}

// The service closes the descriptors of messages that it does not expect.
func TestDescriptorBeforeJoin(t *testing.T) {
	s := start(t, Options{})
	before := descriptors(t)
	for range 20 {
		w := rawConn(t, s)
		if err := w.send(&message{Op: opReport, ID: 1, Size: 1}, 0); err != nil {
			t.Fatal(err)
		}
		expectEnd(t, w)
		_ = w.c.Close()
	}
	eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// A connection can ask for the status once.
func TestStatusOnce(t *testing.T) {
	s := start(t, Options{})
	w := rawConn(t, s)
	for range 2 {
		if err := w.send(&message{Op: opStatus, ID: 1}, -1); err != nil {
			t.Fatal(err)
		}
	}
	var m message
	if _, err := w.receive(&m); err != nil || m.Op != opStatus {
		t.Fatalf("receive() = %v, %+v", err, m)
	}
	expectEnd(t, w)
}

// The status uses no memory of the service after it was sent: no message has a descriptor, which
// the program could keep. A program that does not read it loses its connection.
func TestStatusKeepsNoMemory(t *testing.T) {
	s := start(t, Options{})
	want := bytes.Repeat([]byte("status"), 200_000)
	s.SetStatus(func(uint32, bool) []byte { return want })
	w, hung := rawConn(t, s), rawConn(t, s)
	for _, w := range []*wire{w, hung} {
		if err := w.send(&message{Op: opStatus, ID: 1}, -1); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	for len(got) < len(want) {
		var m message
		fd, err := w.receive(&m)
		if err != nil || fd >= 0 || m.Size != len(want) {
			t.Fatalf("receive() = %d, %v: %d of %d bytes, %q", fd, err, len(got), m.Size, m.Error)
		}
		got = append(got, m.Frame...)
	}
	if !bytes.Equal(got, want) {
		t.Error("the status is not what the service has sent")
	}
	_ = w.c.Close()
	eventually(t, "both connections end", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 0
	})
}

// silentMember joins a service and then neither reads nor answers messages.
func silentMember(t *testing.T, s *Server) *wire {
	t.Helper()
	w := newMemberWire(rawConn(t, s).c)
	if err := w.send(&message{Op: opJoin, ID: 1, Version: version}, -1); err != nil {
		t.Fatal(err)
	}
	var m message
	mads, err := w.receive(&m)
	if err != nil || m.err() != nil {
		t.Fatal(err, m.err())
	}
	t.Cleanup(func() { _ = unix.Close(mads) })
	return w
}

// A program that does not answer is asked for one report only, so that its connection does not end.
func TestOneReportAtATime(t *testing.T) {
	s := start(t, Options{})
	w := silentMember(t, s)
	var m message
	for range 50 {
		if n := len(s.Reports(0)); n != 1 {
			t.Fatalf("%d reports, want 1", n)
		}
	}
	if _, err := w.receive(&m); err != nil || m.Op != opReport {
		t.Fatalf("receive() = %v, %+v, want a request for a report", err, m)
	}
	if err := w.send(&message{Op: opUnlisten, ID: 2}, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := w.receive(&m); err != nil || m.Op != opUnlisten {
		t.Fatalf("receive() = %v, %+v, want no second request", err, m)
	}
	// An answer lets the service ask again.
	if err := w.send(&message{Op: opReport}, -1); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			var m message
			if _, err := w.receive(&m); err != nil {
				return
			}
			_ = w.sendParts(message{Op: opReport}, []byte("x"))
		}
	}()
	eventually(t, "the program answers", func() bool {
		r := s.Reports(time.Second)
		return len(r) == 1 && string(r[0].Body) == "x"
	})
}

// A program cannot use up the descriptors of the service with sockets that it keeps.
func TestKeptSockets(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	bad := rawJoin(t, s)
	kept, err := bad.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; ; i++ {
		bad.Closed(addr)
		fd, err := bad.Open(addr)
		if errors.Is(err, ErrRefused) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(fd)
		if i > maxKept {
			t.Fatalf("the service keeps %d sockets of a program", i)
		}
	}
	a := join(t, s)
	send(t, s.port, addr, addr, qpn(a), 1)
	expect(t, a, 1)
	if err := unix.Close(kept); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the program gets a socket again", func() bool {
		bad.Closed(addr)
		fd, err := bad.Open(addr)
		if err == nil {
			_ = unix.Close(fd)
		}
		return err == nil
	})
}

// The slots whose sockets are kept count for the limit of a user.
func TestKeptSlots(t *testing.T) {
	s := start(t, Options{PerUser: 1})
	addr := s.port.Addrs()[0].Addr()
	for range 2 {
		bad := rawJoin(t, s)
		kept, err := bad.Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(kept)
		bad.end()
		eventually(t, "the program has left", func() bool { return !s.HasMembers() })
	}
	if p, err := Join(s.Path(), JoinOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Join() = %v with two kept slots, want ErrRefused", err)
		if err == nil {
			_ = p.Close()
		}
	}
}

// A socket that a program keeps delays the removal of the sockets of others, but counts for its
// user only. When no slot is free, the error says whose program it is.
func TestKeptSlotOfOther(t *testing.T) {
	s := start(t, Options{PerUser: 1})
	addr := s.port.Addrs()[0].Addr()
	leave := func() (kept int) {
		t.Helper()
		p := rawJoin(t, s)
		kept, err := p.Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		p.end()
		eventually(t, "the program has left", func() bool { return !s.HasMembers() })
		return kept
	}
	defer unix.Close(leave())
	s.mu.Lock()
	for slot := range s.users {
		s.users[slot]++
	}
	s.mu.Unlock()
	for range 3 {
		_ = unix.Close(leave())
	}
	s.mu.Lock()
	for slot := range s.slots {
		if slot > 0 {
			s.slots[slot] = &session{}
			s.slots[slot].cred.Uid = 12345
		}
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.slots = [slots]*session{}
		s.mu.Unlock()
	}()
	_, err := Join(s.Path(), JoinOptions{})
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "keeps a socket") ||
		strings.Contains(err.Error(), "start") { // see TestKeptSocketPreventsStart
		t.Errorf("Join() = %v without a free slot, want ErrRefused because of a kept socket", err)
	}
}

// The sockets of a member never have packets of others, also when a member detaches the program
// that selects sockets while another one gets a socket.
func TestNewSocketIsFiltered(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	detacher, opener, victim := rawJoin(t, s), rawJoin(t, s), join(t, s)
	fd, err := detacher.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	stop, stopped := make(chan struct{}), make(chan struct{})
	defer func() { close(stop); <-stopped }()
	go func() {
		defer close(stopped)
		b := []byte{destSlot: victim.Slot(), 40: 0}
		for {
			select {
			case <-stop:
				return
			default:
			}
			out, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			for range 4 {
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
				_ = unix.Sendto(out, b, unix.MSG_DONTWAIT,
					&unix.SockaddrInet4{Port: bth.Port, Addr: addr.As4()})
			}
			_ = unix.Close(out)
		}
	}()
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); {
		k, err := opener.Open(addr)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Read(k, make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("Read() = %d, %v on a new socket", n, err)
		}
		_ = unix.Close(k)
		opener.Closed(addr)
	}
}

// A user can have half of the connections.
func TestConnectionsOfUser(t *testing.T) {
	s := start(t, Options{})
	var list []*session
	add := func(uid uint32) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for range maxConns / 2 {
			n := &session{s: s, cred: unix.Ucred{Uid: uid}}
			s.conns[n] = true
			list = append(list, n)
		}
	}
	remove := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range list {
			delete(s.conns, n)
		}
		list = nil
	}
	uid := uint32(os.Getuid())
	add(uid)
	_, err := Join(s.Path(), JoinOptions{})
	if err == nil {
		t.Error("Join() = nil although the user has half of the connections")
	}
	remove()
	add(uid + 1)
	p, err := Join(s.Path(), JoinOptions{})
	remove()
	if err != nil {
		t.Fatalf("Join() = %v beside another user", err)
	}
	_ = p.Close()
}

// A path that is too long for the sockets of programs is refused, although a shorter one can be
// renamed to it.
func TestPathIsTooLong(t *testing.T) {
	dir := t.TempDir()
	name := func(n int) string { return filepath.Join(dir, strings.Repeat("x", n-len(dir)-1)) }
	s, err := New(name(maxPath), Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := dial(s.Path())
	if err != nil {
		t.Errorf("dial() = %v with a path of %d bytes", err, maxPath)
	} else {
		_ = c.Close()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if s, err := New(name(maxPath+1), Options{}); err == nil ||
		!strings.Contains(err.Error(), "choose a shorter one") {
		t.Errorf("New() = %v with a path of %d bytes, want an error", err, maxPath+1)
		if err == nil {
			_ = s.Close()
		}
	}
}

// A service replaces nothing but the socket of a service that has ended.
func TestPathIsTaken(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		if s, err := New(path, Options{}); err == nil {
			t.Errorf("New() = nil at %s", path)
			_ = s.Close()
		}
		if b, err := os.ReadFile(path); string(b) != "text" {
			t.Errorf("ReadFile() = %q, %v after New", b, err)
		}
	}
	other := filepath.Join(dir, "other")
	l, err := net.Listen("unix", other)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if s, err := New(other, Options{}); !errors.Is(err, ErrTaken) {
		t.Errorf("New() = %v at the socket of another program, want ErrTaken", err)
		if err == nil {
			_ = s.Close()
		}
	}
}

// A program that is stopped while the network changes often stays a member. When it continues, it
// learns the present state, and answers requests for reports.
func TestStoppedMember(t *testing.T) {
	s := start(t, Options{})
	w := silentMember(t, s)
	var m message
	// The service itself soon corrects this.
	long := strings.Repeat("x", MaxMessage/2)
	for range 100 {
		s.mu.Lock()
		s.state.Info.Name = long
		for n := range s.conns {
			signal(n.change)
		}
		s.mu.Unlock()
		time.Sleep(10 * time.Millisecond)
	}
	s.Reports(writePatience + 500*time.Millisecond) // the request for a report is not read either
	if !s.HasMembers() {
		t.Fatal("the program has lost its connection")
	}
	for present, asked := false, false; !present || !asked; {
		go s.Reports(0)
		if _, err := w.receive(&m); err != nil {
			t.Fatalf("receive() = %v: present state %v, asked %v", err, present, asked)
		}
		if m.State != nil {
			present = m.State.Info.Name != long
		}
		asked = asked || m.Op == opReport
	}
}

// A service cannot start while a program keeps a socket of the one before. The error names the
// command that lists the program, also if the socket is connected.
func TestKeptSocketPreventsStart(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	kept, err := rawJoin(t, s).Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(kept)
	_ = s.Close()
	_ = s.port.Close()
	next, err := New(s.Path(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	next.patience = 0
	port, err := udp.Open(addr.String(), udp.Options{Shared: true})
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	if err := next.Start(port); !errors.Is(err, driver.ErrBusy) ||
		!strings.Contains(err.Error(), "ss -uanp sport = :4791") {
		t.Errorf("Start() = %v", err)
	}
}

// A program learns that the service, not itself, has too many open files.
func TestServiceHasTooManyFiles(t *testing.T) {
	var m message
	m.fail(os.NewSyscallError("socketpair", unix.EMFILE))
	if err := m.err(); !strings.Contains(err.Error(), "of the service") {
		t.Errorf("the error is %q", err)
	}
}
