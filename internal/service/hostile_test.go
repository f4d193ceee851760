package service

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
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

// eventually waits until f returns true.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("this does not happen: %s", what)
		}
	}
}

// rawJoin joins a service without a port, as a hostile program may.
func rawJoin(t testing.TB, s *Server) *client {
	t.Helper()
	c, err := open(s.Path(), &JoinOptions{Name: "raw"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.end()
		_ = unix.Close(c.mads)
	})
	return c
}

func TestGarbage(t *testing.T) {
	s := start(t, Options{})
	member := join(t, s)
	r := rand.New(rand.NewPCG(1, 2))
	texts := []string{"", "{", "null", "[]", `{"op":"join"}`,
		`{"op":"join","version":2,"addr":"x"}`,
		`{"op":"socket","id":1,"addr":"10.0.0.1"}`, `{"op":"leave"}`, `{"op":"resolve","id":1}`,
		`{"op":"will","frame":"AAAA"}`, `{"op":"report","id":7,"size":-1}`, `{"op":"close"}`,
		`{"op":"listen","id":1,"service":18446744073709551615}`, `{"op":"nothing"}`,
		`{"op":"socket","id":2,"addr":"224.0.0.1"}`, `{"op":"status","id":3}`}
	for i := range 200 {
		conn, err := dial(s.Path())
		if err != nil {
			t.Fatal(err)
		}
		w := newWire(conn)
		if i%2 == 0 {
			_ = w.send(&message{Op: opJoin, ID: 1, Version: version}, -1)
		}
		for range r.IntN(8) {
			b := []byte(texts[r.IntN(len(texts))])
			if r.IntN(4) == 0 {
				b = make([]byte, r.IntN(MaxMessage+100))
				for k := range b {
					b[k] = byte(r.Uint32())
				}
			}
			var oob []byte
			for range r.IntN(3) {
				oob = append(oob, unix.UnixRights(0, 1)...)
			}
			_, _, _ = conn.WriteMsgUnix(b, oob, nil)
		}
		_ = conn.Close()
	}
	addr := s.port.Addrs()[0].Addr()
	send(t, member, addr, addr, qpn(member), 1)
	expect(t, member, 1)
	eventually(t, "only the member remains", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.conns) == 1
	})
}

// descriptors returns the number of open descriptors of the process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func TestEndReleasesAll(t *testing.T) {
	s := start(t, Options{})
	join(t, s)
	before := descriptors(t)
	for i := range 8 {
		p := join(t, s)
		if err := p.Listen(5); err != nil {
			t.Fatal(err)
		}
		if err := p.JoinGroup(netip.MustParseAddr("239.1.2.3")); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // the program dies
			p.c.end()
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the slot is released", func() bool { return !s.inUse(p.Slot()) })
	}
	eventually(t, "all descriptors are closed", func() bool { return descriptors(t) <= before })
}

// A program that keeps its socket after it has left gets no packets, and does not disturb others.
func TestKeptSocket(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	bad := rawJoin(t, s)
	kept, err := bad.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	other := rawJoin(t, s)
	if _, err := other.Open(addr); err != nil { // closed with the connection
		t.Fatal(err)
	}
	a, b := join(t, s), join(t, s)
	bad.end()
	eventually(t, "the slot has no member", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.slots[bad.slot] == nil
	})
	check := func(number uint32) {
		t.Helper()
		send(t, a, addr, addr, qpn(b), number)
		expect(t, b, number)
		send(t, b, addr, addr, qpn(a), number+1)
		expect(t, a, number+1)
		// The service gets what is for the slot.
		send(t, b, addr, addr, slotQPN(bad.slot), number+2)
		expect(t, s.port, number+2)
	}
	check(10)
	if err := a.Close(); err != nil { // not removed while the other is kept
		t.Fatal(err)
	}
	a = join(t, s)
	check(20)
	if !s.inUse(bad.slot) {
		t.Error("the slot of the kept socket is free")
	}
	if _, err := unix.Read(kept, make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("the kept socket has a packet: %v", err)
	}
	if err := unix.Close(kept); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the slot is released", func() bool { return !s.inUse(bad.slot) })
	check(30)
}

// The text of a will may be much longer than the frame: base64 ignores line breaks.
func TestWillMemory(t *testing.T) {
	var m message
	b := `{"op":"will","key":1,"frame":"AAAA` + strings.Repeat(`\n`, 30_000) + `"}`
	if err := json.Unmarshal([]byte(b), &m); err != nil {
		t.Fatal(err)
	}
	var w wills
	w.set(m.Key, m.Frame)
	if f := w[m.Key]; len(f) != 3 || cap(f) > 64 {
		t.Errorf("a frame of %d bytes takes %d, want 3", len(f), cap(f))
	}
}

// The service sends the will of a program that has died to IPv4 and IPv6 addresses, and ignores one
// from an address that it does not have.
func TestWillFamilies(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	v6 := netip.MustParseAddr("2001:db8::1")
	will := func(from, to netip.Addr) []byte {
		return makeFrame(make([]byte, maxFrame), from, to, bth.QPNGSI, 77)
	}
	bad := rawJoin(t, s)
	bad.setWill(1, will(v6, v6))
	bad.setWill(2, will(addr, addr))
	eventually(t, "the service has the wills", func() bool { return s.Wills() == 2 })
	bad.end()
	expect(t, s.port, 77)
	a := join(t, s)
	send(t, a, addr, addr, slotQPN(0), 78)
	for { // the will is sent twice
		b := receive(t, s.port)
		if number := binary.BigEndian.Uint32(b[len(b)-8:]); number == 78 {
			return
		} else if number != 77 {
			t.Fatalf("received packet %d", number)
		}
	}
}

func slotQPN(slot uint8) bth.QPN { return bth.QPN(slot)<<16 | 7 }

// A member cannot receive packets of others, whatever it does to its socket.
func TestForeignPackets(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	bad := rawJoin(t, s)
	fd, err := bad.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := setProgram(fd, unix.SO_ATTACH_REUSEPORT_CBPF,
		selectProgram(map[uint8]int{0: 1})); !errors.Is(
		err, unix.EPERM) {
		t.Errorf("attach a program to the group = %v", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); !errors.Is(err,
		unix.EPERM) {
		t.Errorf("detach the filter = %v", err)
	}
	a := join(t, s)
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_REUSEPORT_BPF, 0)
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: 4791, Addr: addr.As4()}); err != nil {
		t.Fatal(err)
	}
	for i := range 32 {
		send(t, s.port, addr, addr, qpn(a), uint32(i))
	}
	if n, err := unix.Read(fd, make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("Read() = %d, %v on the socket of another slot", n, err)
	}
	// The service repairs what the program has done.
	bad.end()
	_ = unix.Close(fd)
	eventually(t, "packets arrive again", func() bool {
		send(t, s.port, addr, addr, qpn(a), 99)
		var buf [1]driver.Buf
		_ = a.Wait(10 * time.Millisecond)
		if a.Receive(buf[:]) == 0 {
			return false
		}
		b := buf[0].B
		last := b[len(b)-5]
		a.Release(buf[:])
		return last == 99
	})
}

func TestLimits(t *testing.T) {
	s := start(t, Options{PerUser: 2})
	a := rawJoin(t, s)
	join(t, s)
	if _, err := Join(s.Path(), JoinOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("Join() = %v with too many members", err)
	}
	for i := range maxListens {
		if _, err := a.request(t.Context(), &message{Op: opListen, Service: uint64(i) << 20}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := a.request(t.Context(), &message{Op: opListen, Service: 1}); !errors.Is(err, ErrRefused) {
		t.Errorf("listen = %v at the limit", err)
	}
	addr := s.port.Addrs()[0].Addr()
	if _, err := a.Open(netip.MustParseAddr("127.0.0.77")); !errors.Is(err, driver.ErrNoAddress) {
		t.Errorf("Open() = %v for an address that the service does not have", err)
	}
	fd, err := a.Open(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := a.Open(addr); !errors.Is(err, ErrRefused) {
		t.Errorf("Open() = %v for the second time", err)
	}
	for i := range maxGroups + 1 {
		fd, err := a.Open(netip.AddrFrom4([4]byte{239, 7, 0, byte(i)}))
		if errors.Is(err, ErrRefused) || errors.Is(err, unix.ENOBUFS) || err != nil {
			if i == 0 {
				t.Errorf("Open() = %v for the first group", err)
			}
			break
		}
		_ = unix.Close(fd)
		if i == maxGroups {
			t.Errorf("%d groups", i)
		}
	}
}

// A member that does not read its MADs and messages does not delay the service.
func TestMemberDoesNotRead(t *testing.T) {
	s := start(t, Options{})
	conn, err := net.DialUnix(network, nil, &net.UnixAddr{Name: s.Path(), Net: network})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := newWire(conn)
	if err := w.send(&message{Op: opJoin, ID: 1, Version: version}, -1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is a member", func() bool { return len(s.Reports(0)) == 1 })
	start := time.Now()
	for range 3 {
		s.Reports(10 * time.Millisecond)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("reports take %v", d)
	}
}

func TestStatusAndPaths(t *testing.T) {
	s := start(t, Options{Mode: 0o660})
	want := bytes.Repeat([]byte("status"), 30_000)
	if _, err := Status(t.Context(), s.Path()); err == nil {
		t.Error("Status() = nil without a function")
	}
	s.SetStatus(func(uid uint32, privileged bool) []byte {
		if int(uid) != os.Getuid() || !privileged {
			t.Errorf("the user is %d, privileged %v", uid, privileged)
		}
		return want
	})
	got, err := Status(t.Context(), s.Path())
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("Status() = %d bytes, %v", len(got), err)
	}
	p := join(t, s)
	p.SetReport(func() []byte { return want })
	if r := s.Reports(20 * time.Second); len(r) != 1 || !bytes.Equal(r[0].Body, want) ||
		r[0].UID != os.Getuid() || r[0].Slot != p.Slot() {
		t.Errorf("Reports() has %d entries", len(r))
	}
	st, err := os.Stat(s.Path())
	if err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("Stat() = %v, %v", st, err)
	}
	if _, err := New(s.Path(), Options{}); !errors.Is(err, ErrTaken) {
		t.Errorf("New() = %v at the path of a service", err)
	}
	if _, err := Join(filepath.Join(t.TempDir(), "none"), JoinOptions{}); !errors.Is(err, ErrNone) {
		t.Errorf("Join() = %v without a service", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Wait returns ErrServiceEnded", func() bool {
		p.Receive(make([]driver.Buf, 1))
		return errors.Is(p.Wait(time.Second), driver.ErrServiceEnded)
	})
	if _, err := Join(s.Path(), JoinOptions{}); !errors.Is(err, ErrNone) {
		t.Errorf("Join() = %v after the service has ended", err)
	}
}

// A service can be started again while programs of the previous one still exist, but not beside
// another one.
func TestRestart(t *testing.T) {
	addr := udp.RandomLoopback()
	var members []*MemberPort
	for range 2 {
		p, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{addr}, Shared: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(filepath.Join(t.TempDir(), "s"), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Start(p); err != nil {
			t.Fatal(err)
		}
		a, b := join(t, s), join(t, s)
		send(t, a, addr, addr, qpn(b), 1)
		expect(t, b, 1)
		send(t, b, addr, addr, qpn(a), 2)
		expect(t, a, 2)
		if members = append(members, a, b); len(members) == 4 {
			second, err := udp.Open("lo", udp.Options{Addrs: []netip.Addr{addr}, Shared: true})
			if err != nil {
				t.Fatal(err)
			}
			o, err := New(filepath.Join(t.TempDir(), "s"), Options{})
			if err != nil {
				t.Fatal(err)
			}
			o.patience = 10 * time.Millisecond
			if err := o.Start(second); !errors.Is(err, driver.ErrBusy) {
				t.Errorf("Start() = %v beside another service", err)
			}
			if err := errors.Join(o.Close(), second.Close()); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(s.Close(), p.Close()); err != nil {
			t.Error(err)
		}
	}
}

// A member that sends more messages than it may does not delay others.
func TestFlood(t *testing.T) {
	s := start(t, Options{})
	addr := s.port.Addrs()[0].Addr()
	bad, good := rawJoin(t, s), rawJoin(t, s)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for bad.w.send(&message{Op: opResolve, Src: addr, Dst: addr}, -1) == nil {
		}
	}()
	for range 100 {
		if _, err := good.Resolve(t.Context(), addr, addr); err != nil {
			t.Fatal(err)
		}
	}
	bad.end()
	<-stopped
}

// TestConnectWaits: a program connects although others fill the queue of the socket.
func TestConnectWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for full := false; !full; {
		c, err := dial(path)
		if err == nil {
			defer c.Close() // at the end of the test
		}
		full = errors.Is(err, unix.EAGAIN)
		if err != nil && !full {
			t.Fatal(err)
		}
	}
	accepted := make(chan int, 1)
	time.AfterFunc(20*connectPause, func() {
		c, _, err := unix.Accept(fd)
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	})
	c, err := connect(path)
	if err != nil {
		t.Errorf("connect() = %v", err)
	} else {
		_ = c.Close()
	}
	_ = unix.Close(<-accepted)
}
