package service

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/udp"
)

// Options configure a Server. The zero value suits most users.
type Options struct {
	Mode    fs.FileMode   // of the socket; 0: 0600
	Group   int           // owner of the socket; 0: the group of the process
	PerUser int           // largest number of members of a user; 0: DefaultPerUser
	Limits  driver.Limits // of each member
}

// Server is a node service. All methods are safe for concurrent use, except Start.
type Server struct {
	path    string
	options Options
	owner   int // user who started the service
	l       *net.UnixListener
	port    *udp.Port
	index   int    // of the interface
	cookie  uint64 // of the network namespace; 0: unknown
	list    *socketList
	status  func(uid uint32, privileged bool) []byte
	empty   chan struct{}
	kick    chan struct{} // there are dead sockets
	stop    chan struct{}
	closing sync.Once

	patience time.Duration // see alonePatience
	refusals chan struct{} // has a value for each refused connection that is being closed
	log      atomic.Pointer[logFunc]
	running  sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	conns    map[*session]bool
	slots    [slots]*session
	users    [slots]uint32 // the latest user of each slot
	next     int           // slot from which the next free one is searched
	groups   map[netip.Addr]*group
	state    netState // told to members
	reports  uint64   // requests for reports
	unmerged bool     // see unmerge
	forwards forwards
}

// forwards are what Forward needs.
type forwards struct {
	sync.Mutex
	listeners listeners
	mads      [slots]int // sockets to members; 0: none
	enc       frame.Encoder
	buf       [maxFrame]byte
	dropped   uint64
}

var _ driver.Member = (*Server)(nil)

// New makes the socket of a service, with the standard folder if the path is in one. Connections
// are accepted when Start is called. The error wraps ErrTaken if a service answers at the path.
func New(path string, o Options) (*Server, error) {
	if o.PerUser == 0 {
		o.PerUser = DefaultPerUser
	}
	if o.Mode == 0 {
		o.Mode = 0o600
	}
	l, err := listen(path, &o)
	if err != nil {
		return nil, fmt.Errorf("open the socket of the node service: %w", err)
	}
	return &Server{path: path, options: o, owner: os.Geteuid(), patience: alonePatience, l: l,
		empty: make(chan struct{}, 1),
		kick:  make(chan struct{}, 1), stop: make(chan struct{}), conns: map[*session]bool{},
		refusals: make(chan struct{}, maxConns),
		groups:   map[netip.Addr]*group{}, next: 1,
		forwards: forwards{listeners: listeners{}}}, nil
}

// listen makes the socket in a folder of its own, which only this user may enter, so that nobody
// connects before it has its mode.
func listen(path string, o *Options) (*net.UnixListener, error) {
	dir := filepath.Dir(path)
	if err := makeDir(dir); err != nil {
		return nil, err
	}
	if err := checkVacant(path); err != nil {
		return nil, err
	}
	tmp, err := os.MkdirTemp(dir, ".s")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(tmp)
	first := filepath.Join(tmp, "s")
	if max(len(path), len(first)) > maxPath { // nobody could connect to it
		return nil, fmt.Errorf("the path %s is too long for a socket: choose a shorter one", path)
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: first, Net: network})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false)
	if o.Group != 0 {
		err = os.Chown(first, -1, o.Group)
	}
	if err == nil {
		err = os.Chmod(first, o.Mode)
	}
	if err == nil {
		err = os.Rename(first, path)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// maxPath is the length of the longest path of a unix socket.
const maxPath = len(unix.RawSockaddrUnix{}.Path) - 1

// checkVacant returns an error unless nothing is at a path, or the socket of a service that has
// ended.
func checkVacant(path string) error {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: choose another path", path)
	}
	c, err := dial(path)
	switch {
	case err == nil:
		_ = c.Close()
		return fmt.Errorf("%w: a node service answers at %s, perhaps that of another network "+
			"namespace: choose another path, such as --socket of gorxe up", ErrTaken, path)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		return nil
	}
	return fmt.Errorf("%w: another program has %s: %w", ErrTaken, path, err)
}

// network is the type of the unix socket, SOCK_SEQPACKET.
const network = "unixpacket"

func dial(path string) (*net.UnixConn, error) {
	return net.DialUnix(network, nil, &net.UnixAddr{Name: path, Net: network})
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.path }

// Start accepts members. port must be, or wrap, a udp.Port with Options.Shared.
func (s *Server) Start(port driver.Port) (err error) {
	p, ok := driver.Find[*udp.Port](port)
	if !ok {
		return errors.New("a node service needs UDP sockets")
	}
	s.port, s.index = p, p.Index()
	if err := p.InNamespace(func() (err error) {
		s.list, err = openSocketList()
		return err
	}); err != nil {
		return fmt.Errorf("list the UDP sockets: %w", err)
	}
	s.state = s.readState()
	for _, a := range s.state.Addrs {
		if err := s.awaitAlone(a.Addr()); err != nil {
			return err
		}
		fd, err := p.Share(a.Addr())
		if err != nil {
			return err
		}
		s.cookie = netCookie(fd)
		_ = unix.Close(fd)
	}
	s.running.Go(s.accept)
	s.running.Go(s.maintain)
	return nil
}

const (
	// alonePatience is how long Start waits for the programs of an earlier service, which close
	// their sockets when they see that it has ended.
	alonePatience = 3 * time.Second
	alonePause    = 5 * time.Millisecond
)

// awaitAlone waits until no other socket is bound to an address, because the numbers of the sockets
// would not be known.
func (s *Server) awaitAlone(a netip.Addr) error {
	for end := time.Now().Add(s.patience); ; time.Sleep(alonePause) {
		n, err := s.list.bound(a)
		if err != nil {
			return fmt.Errorf("list the UDP sockets: %w", err)
		}
		if n <= 1 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%w: another node service, or a program of an earlier one, receives "+
				"on UDP port %d of %v: close it (`ss -uanp sport = :%[2]d` lists it)",
				driver.ErrBusy, bth.Port, a)
		}
	}
}

// netCookie returns a number that identifies the network namespace of a socket; 0: unknown, on
// kernels before 5.14.
func netCookie(fd int) uint64 {
	c, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetNSCookie)
	if err != nil {
		return 0
	}
	return c
}

const soNetNSCookie = 71 // SO_NETNS_COOKIE

func (s *Server) accept() {
	for {
		c, err := s.l.AcceptUnix()
		if err != nil {
			select {
			case <-s.stop:
				return
			case <-time.After(acceptPause): // too many open files
				continue
			}
		}
		s.admit(c)
	}
}

// acceptPause is the pause after an error of accept.
const acceptPause = 100 * time.Millisecond

// admit starts a session, or refuses it.
func (s *Server) admit(c *net.UnixConn) {
	cred, err := peerOf(c)
	n := newSession(s, c, cred)
	if err == nil {
		err = s.begin(n)
	}
	if err == nil {
		return
	}
	n.refused("", err)
	// The kernel also closes descriptors that the program has sent and nobody has received. It can
	// take as long as the program likes: one may be a TCP socket that lingers.
	select {
	case s.refusals <- struct{}{}:
		go func() {
			_ = c.Close()
			<-s.refusals
		}()
	case <-s.stop:
	}
}

// begin starts a session unless there are too many.
func (s *Server) begin(n *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return driver.ErrServiceEnded
	}
	same := 0
	for o := range s.conns {
		if o.cred.Uid == n.cred.Uid {
			same++
		}
	}
	if len(s.conns) == maxConns || same == maxConns/2 {
		return refuse("too many connections")
	}
	s.conns[n] = true
	s.running.Go(n.run)
	return nil
}

// join gives a session a slot. It has a socket for MADs then, whose remote end join returns.
func (s *Server) join(n *session) (mads int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return -1, driver.ErrServiceEnded
	}
	used := [slots]bool{}
	for _, g := range s.groups {
		for _, m := range g.socks {
			used[m.slot] = true
		}
	}
	same, kept, alone := 0, 0, true
	for slot := 1; slot < slots; slot++ {
		switch o := s.slots[slot]; {
		case o != nil && o.cred.Uid == n.cred.Uid:
			same++
		case o != nil:
			alone = false
		case used[slot] && s.users[slot] == n.cred.Uid:
			kept++
		}
	}
	if same >= s.options.PerUser {
		return -1, refuse("user %d has %d programs at this service, the limit: end one, or raise "+
			"--user-programs of gorxe up", n.cred.Uid, same)
	}
	// While a socket is kept, those of all programs that leave later are not removed.
	if same+kept >= 2*s.options.PerUser && s.keepers()[n.cred.Uid] {
		return -1, refuse("programs of user %d keep sockets of %d slots: end them", n.cred.Uid, kept)
	}
	slot := 0
	for range driver.MaxSlot {
		if s.slots[s.next] == nil && !used[s.next] {
			slot = s.next
		}
		s.next = s.next%driver.MaxSlot + 1
		if slot != 0 {
			break
		}
	}
	if slot == 0 {
		for uid := range s.keepers() {
			return -1, refuse("all %d slots are in use or not free yet: a program of user %d keeps a "+
				"socket of one that has left: end it (`ss -uanp sport = :%d` lists it)",
				driver.MaxSlot, uid, bth.Port)
		}
		return -1, refuse("all %d slots are in use", driver.MaxSlot)
	}
	pair, err := unix.Socketpair(unix.AF_UNIX,
		unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	_ = unix.SetsockoptInt(pair[0], unix.SOL_SOCKET, unix.SO_SNDBUF, madBuffer)
	// The member only receives. What it has sent would be closed with the socket, see admit.
	_ = unix.Shutdown(pair[0], unix.SHUT_RD)
	n.slot = uint8(slot)
	s.slots[slot], s.users[slot] = n, n.cred.Uid
	if !alone { // a member gets the whole run that begins with a packet of its slot
		s.unmerge()
	}
	s.forwards.Lock()
	s.forwards.mads[slot] = pair[0]
	s.forwards.Unlock()
	return pair[1], nil
}

// keepers returns the users of programs that keep sockets of programs that have left. s.mu must be
// held.
func (s *Server) keepers() map[uint32]bool {
	users := map[uint32]bool{}
	for _, g := range s.groups {
		for _, m := range g.socks {
			if m.fd < 0 {
				users[s.users[m.slot]] = true
			}
		}
	}
	return users
}

// madBuffer is the size of the buffer of MADs that a member has not read, bytes.
const madBuffer = 256 << 10

// release ends the membership of a session.
func (s *Server) release(n *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, n)
	if n.slot == 0 {
		return
	}
	f := &s.forwards
	f.Lock()
	for id := range f.listeners {
		f.listeners.remove(id, n.slot)
	}
	_ = unix.Close(f.mads[n.slot])
	f.mads[n.slot] = 0
	f.Unlock()
	for _, g := range s.groups {
		g.close(n.slot)
	}
	s.sweep()
	s.slots[n.slot] = nil
	if !s.occupied() {
		signal(s.empty)
	}
}

// Empty returns a channel that receives a value when the last member has left.
func (s *Server) Empty() <-chan struct{} { return s.empty }

// SetOwner makes a user the owner of the service's sockets. Call it, after Start, before the
// process becomes this user: the kernel lets sockets share an address only if they have the same
// owner.
func (s *Server) SetOwner(uid int) error {
	for _, a := range s.port.Addrs() {
		fd, err := s.port.Share(a.Addr())
		if err != nil {
			continue // the address was removed
		}
		err = unix.Fchown(fd, uid, -1)
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("change the owner of the UDP sockets: %w", err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		for _, m := range g.socks {
			if m.fd < 0 {
				continue
			}
			if err := unix.Fchown(m.fd, uid, -1); err != nil {
				return fmt.Errorf("change the owner of the UDP sockets: %w", err)
			}
		}
	}
	return nil
}

// Close ends the service. Members see it and end their devices.
func (s *Server) Close() error {
	s.closing.Do(func() {
		close(s.stop)
		_ = os.Remove(s.path) // while it answers: the next service has not replaced it
		_ = s.l.Close()
		s.mu.Lock()
		s.closed = true
		for n := range s.conns {
			go n.end()
		}
		s.mu.Unlock()
		s.await()
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, g := range s.groups {
			g.closeAll()
		}
		s.groups = nil
		if s.list != nil {
			s.list.close()
		}
	})
	return nil
}

// closePatience is how long Close waits for the end of sessions. Descriptors that a program has
// sent can delay it, see admit.
const closePatience = 2 * time.Second

// await waits for the end of the goroutines, at most closePatience.
func (s *Server) await() {
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(closePatience):
	}
}
