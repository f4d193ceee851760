package service

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// session is the server's side of a connection.
type session struct {
	s      *Server
	w      *wire
	cred   unix.Ucred
	change chan struct{} // the network has changed
	done   chan struct{} // closed at the end
	once   sync.Once

	// Only the goroutine of run accesses the following fields.
	tokens  float64
	refill  time.Time
	left    bool // orderly end
	asked   bool // for the status, which a connection may do once: answers take long
	sockets map[netip.Addr]bool
	groups  map[netip.Addr]bool
	listens int
	report  parts

	// The following fields do not change after the member has joined.
	slot   uint8
	only   netip.Addr // the only address; the zero Addr: all addresses
	name   string
	joined time.Time

	mu       sync.Mutex
	reports  map[uint64]chan []byte // of calls of Reports that wait
	awaiting bool                   // the member has been asked for a report
	wills    wills
}

func newSession(s *Server, c *net.UnixConn, cred unix.Ucred) *session {
	return &session{s: s, w: newWire(c), cred: cred, change: make(chan struct{}, 1),
		done: make(chan struct{}), tokens: messageBurst, refill: time.Now(),
		sockets: map[netip.Addr]bool{}, groups: map[netip.Addr]bool{},
		reports: map[uint64]chan []byte{}}
}

// end makes run return.
func (n *session) end() {
	n.once.Do(func() {
		close(n.done)
		_ = n.w.c.Close()
	})
}

// run answers requests until the connection ends.
func (n *session) run() {
	var err error
	defer func() {
		n.s.release(n)
		n.ended(err)
	}()
	defer n.end()
	_ = n.w.c.SetReadDeadline(time.Now().Add(joinPatience))
	for n.pace() {
		var m message
		if _, err = n.w.receive(&m); err == nil {
			err = n.handle(&m)
		}
		if err != nil || n.left {
			break
		}
	}
	if n.slot != 0 && !n.left {
		n.sendWills()
	}
}

// pace waits until the next message may be read. It returns false at the end.
func (n *session) pace() bool {
	now := time.Now()
	n.tokens = min(messageBurst, n.tokens+messageRate*now.Sub(n.refill).Seconds())
	n.refill = now
	if n.tokens--; n.tokens >= 0 {
		return true
	}
	select {
	case <-n.done:
		return false
	case <-time.After(time.Second / messageRate * 10):
		return true
	}
}

// errProtocol means that a member does not follow the protocol. Its connection is closed.
var errProtocol = errors.New("unexpected message")

// handle handles a request and sends the response. An error ends the connection.
func (n *session) handle(m *message) error {
	r := message{ID: m.ID, Op: m.Op}
	out, keep := -1, false
	var err error
	switch {
	case m.Op == opStatus && !n.asked:
		n.asked = true
		return n.sendStatus(m.ID)
	case m.Op == opJoin && n.slot == 0:
		if out, err = n.join(m, &r); err == nil {
			n.hasJoined()
			defer n.follow()
		} else {
			n.refused(printable(m.Name), err)
		}
	case n.slot == 0:
		return errProtocol
	case m.Op == opReport:
		return n.takeReport(m)
	case m.Op == opLeave:
		n.left = true
		return nil
	case m.Op == opWill:
		n.mu.Lock()
		n.wills.set(m.Key, m.Frame)
		n.mu.Unlock()
		return nil
	case m.Op == opMixed:
		n.s.mu.Lock()
		n.s.unmerge()
		n.s.mu.Unlock()
		return nil
	case m.Op == opSocket:
		out, keep, err = n.socket(m.Addr)
	case m.Op == opClose:
		n.close(m.Addr)
		return nil
	case m.Op == opResolve:
		var hop driver.Hop
		if hop, err = n.resolve(m.Src, m.Dst); err == nil {
			r.Hop = &hop
		}
	case m.Op == opListen:
		err = n.listen(m.Service)
	case m.Op == opUnlisten:
		n.unlisten(m.Service)
	default:
		return errProtocol
	}
	if err != nil {
		r.fail(err)
	}
	err = nil
	if m.ID != 0 {
		err = n.w.send(&r, out)
	}
	if out >= 0 && !keep {
		_ = unix.Close(out)
	}
	return err
}

// join makes the connection that of a member.
func (n *session) join(m, r *message) (mads int, err error) {
	if m.Version != version {
		return -1, refuse("it speaks version %d of the protocol, and the service %d: use the same "+
			"version of gorxe", m.Version, version)
	}
	n.name, n.only, n.joined = printable(m.Name), m.Addr, time.Now()
	st := n.s.stateFor(n.only)
	if len(st.Addrs) == 0 {
		return -1, driver.ErrNoAddress
	}
	if mads, err = n.s.join(n); err != nil {
		return -1, err
	}
	r.Slot, r.State, r.Net, r.Limits = n.slot, &st, n.s.cookie, &n.s.options.Limits
	_ = n.w.c.SetReadDeadline(time.Time{})
	return mads, nil
}

// printable returns the printable ASCII characters of a name, at most maxName.
func printable(name string) string {
	var b []byte
	for i := 0; i < len(name) && len(b) < maxName; i++ {
		if c := name[i]; c > ' ' && c <= '~' {
			b = append(b, c)
		}
	}
	return string(b)
}

// follow tells the member about changes of the network until the end.
func (n *session) follow() {
	n.s.running.Go(func() {
		for {
			select {
			case <-n.done:
				return
			case <-n.change:
			}
			st := n.s.stateFor(n.only)
			if !n.tell(&message{Op: evState, State: &st}) {
				signal(n.change)
			}
		}
	})
}

// tell sends an event. A program that is stopped does not read it, which is no reason to end its
// connection: the caller sends the event later if tell returns false.
func (n *session) tell(m *message) bool {
	err := n.w.send(m, -1)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		n.end()
	}
	return err == nil
}

// socket opens a socket for the member. keep means that the server keeps the descriptor, too.
func (n *session) socket(a netip.Addr) (fd int, keep bool, err error) {
	a = a.Unmap().WithZone("")
	switch {
	case a.IsMulticast():
		if n.groups[a] {
			return -1, false, refuse("it has a socket of %v", a)
		}
		if len(n.groups) == maxGroups {
			return -1, false, refuse("more than %d multicast groups", maxGroups)
		}
		fd, err = n.s.openGroup(a)
		if err == nil {
			n.groups[a] = true
		}
		return fd, false, err
	case n.only.IsValid() && a != n.only:
		return -1, false, driver.ErrNoAddress
	case len(n.sockets) == maxSockets:
		return -1, false, refuse("more than %d sockets", maxSockets)
	}
	fd, err = n.s.openSocket(n.slot, a)
	if err == nil {
		n.sockets[a] = true
	}
	return fd, true, err
}

// openGroup opens a socket of a multicast group.
func (s *Server) openGroup(a netip.Addr) (fd int, err error) {
	err = s.port.InNamespace(func() error {
		l, err := udpmsg.ListenWith(a, s.index, false,
			func(fd int) error { return pace(fd, s.options.Limits.Rate) })
		fd = l.FD
		return err
	})
	if err != nil {
		return -1, err
	}
	return fd, nil
}

func (n *session) close(a netip.Addr) {
	a = a.Unmap().WithZone("")
	if a.IsMulticast() {
		delete(n.groups, a) // the socket was closed by the member
		return
	}
	delete(n.sockets, a)
	n.s.closeSocket(n.slot, a)
}

func (n *session) listen(id uint64) error {
	if n.listens == maxListens {
		return refuse("it listens on more than %d service IDs", maxListens)
	}
	err := n.s.listenAt(id, listener{slot: n.slot, addr: n.only})
	if err == nil {
		n.listens++
	}
	return err
}

func (n *session) unlisten(id uint64) {
	if n.s.unlistenAt(n.slot, id) {
		n.listens--
	}
}
