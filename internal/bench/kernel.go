package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/papers/kit"
)

const (
	udpBatch = 64 // datagrams per system call
	// udpBuffer is the size of a UDP socket's buffers, as much as the rings of a port hold.
	udpBuffer = 4 << 20
	// readSize is the size of a read from TCP.
	readSize = 256 * kib
	// socketTimeout is how long a blocked socket waits before it checks halt.
	socketTimeout = 100 * time.Millisecond
)

// kernel measures TCP or UDP with plain system calls on the measuring thread, without Go's net
// package.
type kernel struct {
	spec   *spec
	iface  string
	addr   netip.Addr
	listen int // socket of TCP's passive side, otherwise -1
	fd     int
	port   uint16
	undo   func() error
	buf    []byte
}

func newKernel(s *spec, iface string, addr netip.Addr) (_ *kernel, err error) {
	k := &kernel{
		spec: s, iface: iface, addr: addr, listen: -1, fd: -1,
		undo: func() error { return nil }, buf: make([]byte, max(readSize, s.Size)),
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if err := kit.SetOffload(iface, s.Kind != kindNoTSO); err != nil {
		return nil, err
	}
	if s.Loss > 0 {
		if k.undo, err = dropPackets(iface, s.Loss); err != nil {
			return nil, err
		}
	}
	return k, k.open()
}

func (k *kernel) tcp() bool { return k.spec.Kind != kindUDP && k.spec.Kind != kindRuns }

func (k *kernel) hello() hello { return hello{Addr: k.addr, Port: k.port} }

func (k *kernel) open() error {
	kind := unix.SOCK_STREAM
	if !k.tcp() {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("create a socket: %w", err)
	}
	k.fd = fd
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: k.addr.As4()}); err != nil {
		return fmt.Errorf("bind to %v: %w", k.addr, err)
	}
	if err := k.tune(); err != nil {
		return err
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("read the port of a socket: %w", err)
	}
	in, ok := sa.(*unix.SockaddrInet4)
	if !ok {
		return errors.New("the socket has no IPv4 address")
	}
	k.port = uint16(in.Port)
	if k.tcp() && !k.spec.Active {
		k.listen, k.fd = fd, -1
		if err := unix.Listen(fd, 1); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
	return nil
}

// tune sets socket options. Accepted sockets inherit those of the listening socket.
func (k *kernel) tune() error {
	tv := unix.NsecToTimeval(int64(socketTimeout))
	err := errors.Join(
		unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
	)
	set := func(level, option, value int) {
		err = errors.Join(err, unix.SetsockoptInt(k.fd, level, option, value))
	}
	if k.tcp() {
		if k.spec.Kind == kindNoTSO {
			set(unix.IPPROTO_TCP, unix.TCP_MAXSEG, int(k.spec.MTU))
		}
		set(unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	} else {
		set(unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer)
		set(unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, udpBuffer)
	}
	if err != nil {
		return fmt.Errorf("set socket options: %w", err)
	}
	return nil
}

func (k *kernel) close() error {
	for _, fd := range []int{k.fd, k.listen} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	k.fd, k.listen = -1, -1
	undo := k.undo
	k.undo = func() error { return nil }
	return undo()
}

func (k *kernel) run(peer *hello, ready func(), h *halt) (outcome, error) {
	if k.listen >= 0 {
		ready() // the kernel completes the peer's connect on its own
		if err := k.accept(h); err != nil || k.fd < 0 {
			return outcome{}, err
		}
	} else {
		if err := k.connect(peer); err != nil {
			return outcome{}, err
		}
		ready()
	}
	switch {
	case k.spec.Test == pingpong && k.spec.Active:
		return k.ping(h)
	case k.spec.Test == pingpong:
		return outcome{}, k.echo(h)
	case k.spec.Active:
		return outcome{}, k.send(h)
	}
	return k.count(h)
}

func (k *kernel) connect(peer *hello) error {
	err := retry(func() error {
		return unix.Connect(k.fd, &unix.SockaddrInet4{Addr: peer.Addr.As4(), Port: int(peer.Port)})
	})
	if err != nil {
		return fmt.Errorf("connect to %v: %w", netip.AddrPortFrom(peer.Addr, peer.Port), err)
	}
	return nil
}

func (k *kernel) accept(h *halt) error {
	for !h.isSet() {
		fd, _, err := unix.Accept4(k.listen, unix.SOCK_CLOEXEC)
		if err == nil {
			k.fd = fd
			return k.tune()
		}
		if !temporary(err) {
			return fmt.Errorf("accept: %w", err)
		}
	}
	return nil
}

// temporary reports whether a system call may succeed if it is repeated. connect returns EALREADY
// or EINPROGRESS after SO_SNDTIMEO.
func temporary(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) ||
		errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS)
}

// retry repeats f while its errors are temporary, for at most connectTimeout.
func retry(f func() error) error {
	for deadline := time.Now().Add(connectTimeout); ; {
		err := f()
		if err == nil || errors.Is(err, unix.EISCONN) {
			return nil
		}
		if !temporary(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// send sends messages as fast as the socket takes them.
func (k *kernel) send(h *halt) error {
	msg := k.buf[:k.spec.Size]
	write := func() error {
		_, err := unix.Write(k.fd, msg)
		return err
	}
	if !k.tcp() {
		m := newMessages(udpBatch, k.spec.Size)
		write = func() error {
			_, err := m.send(k.fd)
			if errors.Is(err, unix.ENOBUFS) {
				err = nil // the datagrams are lost
			}
			return err
		}
	}
	return drive(k.spec, h, func() error {
		if err := write(); err != nil && !temporary(err) {
			return fmt.Errorf("send %s: %w", k.spec.Kind, err)
		}
		return nil
	})
}

// count receives until halt is set and nothing is left.
func (k *kernel) count(h *halt) (outcome, error) {
	if !k.tcp() {
		m := newMessages(udpBatch, k.spec.Size)
		return k.countWith(h, func() (int, error) { return m.receive(k.fd) })
	}
	o, err := k.countWith(h, func() (int, error) { return unix.Read(k.fd, k.buf) })
	o.Messages /= uint64(k.spec.Size) // bytes
	o.All /= uint64(k.spec.Size)
	return o, err
}

// countWith sums up the results of receive.
func (k *kernel) countWith(h *halt, receive func() (int, error)) (outcome, error) {
	w := window{warmup: k.spec.Warmup}
	for {
		n, err := receive()
		switch {
		case n > 0:
			w.add(time.Now(), uint64(n))
		case err != nil && !temporary(err):
			return outcome{}, fmt.Errorf("receive %s: %w", k.spec.Kind, err)
		case h.isSet():
			return w.outcome(), nil
		}
	}
}

// ping sends a message and waits for the reply, again and again.
func (k *kernel) ping(h *halt) (outcome, error) {
	t := newTrips(k.spec)
	var msg [wordSize]byte
	for i := uint64(1); ; i++ {
		binary.LittleEndian.PutUint64(msg[:], i)
		if err := k.sendOne(msg[:]); err != nil {
			return outcome{}, err
		}
		ok, err := k.receiveOne(h, msg[:])
		if err != nil {
			return outcome{}, err
		}
		if !ok || t.done() {
			return t.outcome(), nil
		}
	}
}

// echo sends every message back.
func (k *kernel) echo(h *halt) error {
	var msg [wordSize]byte
	for {
		ok, err := k.receiveOne(h, msg[:])
		if err != nil || !ok {
			return err
		}
		if err := k.sendOne(msg[:]); err != nil {
			return err
		}
	}
}

// sendOne sends a short message.
func (k *kernel) sendOne(msg []byte) error {
	if err := retry(func() error { return rawSend(k.fd, msg) }); err != nil {
		return fmt.Errorf("send %s: %w", k.spec.Kind, err)
	}
	return nil
}

// receiveOne receives a short message, spinning or blocking. It returns false if halt is set.
func (k *kernel) receiveOne(h *halt, msg []byte) (bool, error) {
	for polls := 1; ; polls++ {
		var err error
		if k.spec.Spin {
			err = rawReceive(k.fd, msg)
		} else {
			_, _, err = unix.Recvfrom(k.fd, msg, unix.MSG_WAITALL)
		}
		switch {
		case err == nil:
			return true, nil
		case !temporary(err):
			return false, fmt.Errorf("receive %s: %w", k.spec.Kind, err)
		case k.spec.Spin && polls%haltEvery != 0:
		case h.isSet():
			return false, nil
		}
	}
}
