package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	udpBatch = 64 // messages a system call
	// udpBuffer is what a UDP socket may hold: as much as the rings of a port.
	udpBuffer = 4 << 20
	// readSize is how much TCP's receiver asks for at a time.
	readSize  = 256 * kib
	sleepTime = 100 * time.Millisecond // of a blocked socket, between two looks at the outside world
)

// kernel is TCP or UDP by plain system calls on the measuring thread: no Go net package in between.
type kernel struct {
	spec   *spec
	iface  string
	addr   netip.Addr
	listen int // of TCP's passive side
	fd     int
	port   uint16
	undo   func() error
	buf    []byte
}

func newKernel(s *spec, iface string, addr netip.Addr) (_ *kernel, err error) {
	k := &kernel{spec: s, iface: iface, addr: addr, listen: -1, fd: -1, undo: func() error { return nil }}
	k.buf = make([]byte, max(readSize, s.Size))
	defer func() {
		if err != nil {
			err = errors.Join(err, k.close())
		}
	}()
	if k.tcp() {
		if err := setOffload(iface, s.Kind == kindTCP); err != nil {
			return nil, err
		}
	}
	if s.Loss > 0 {
		if k.undo, err = dropPackets(iface, s.Loss); err != nil {
			return nil, err
		}
	}
	return k, k.open()
}

func (k *kernel) tcp() bool { return k.spec.Kind != kindUDP }

func (k *kernel) hello() hello { return hello{Addr: k.addr, Port: k.port} }

func (k *kernel) open() error {
	kind := unix.SOCK_STREAM
	if !k.tcp() {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("make a socket: %w", err)
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
		return fmt.Errorf("ask for the socket's port: %w", err)
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

// tune sets options; those of a listening socket hold for what it accepts.
func (k *kernel) tune() error {
	tv := unix.NsecToTimeval(int64(sleepTime))
	err := errors.Join(
		unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(k.fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
	)
	switch {
	case !k.tcp():
		err = errors.Join(err,
			unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, udpBuffer),
			unix.SetsockoptInt(k.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, udpBuffer))
	case k.spec.Kind == kindNoTSO:
		err = errors.Join(err, unix.SetsockoptInt(k.fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, int(k.spec.MTU)))
		fallthrough
	default:
		err = errors.Join(err, unix.SetsockoptInt(k.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
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
		ready() // the kernel completes the peer's connect by itself
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
	case k.tcp() && k.spec.Active:
		return outcome{}, k.pour(h)
	case k.tcp():
		return k.drain(h)
	case k.spec.Active:
		return outcome{}, k.pourUDP(h)
	}
	return k.drainUDP(h)
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
	for !h.now() {
		fd, _, err := unix.Accept4(k.listen, unix.SOCK_CLOEXEC)
		if err == nil {
			k.fd = fd
			return k.tune()
		}
		if !passing(err) {
			return fmt.Errorf("accept: %w", err)
		}
	}
	return nil
}

// passing errors are those after which one tries again.
func passing(err error) bool {
	return errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) ||
		errors.Is(err, unix.EALREADY) || errors.Is(err, unix.EINPROGRESS) // a connect that ran into SO_SNDTIMEO
}

// retry repeats f while its errors are passing ones, for some seconds.
func retry(f func() error) error {
	for deadline := time.Now().Add(connectTime); ; {
		err := f()
		if err == nil || errors.Is(err, unix.EISCONN) {
			return nil
		}
		if !passing(err) || time.Now().After(deadline) {
			return err
		}
	}
}

// pour writes messages into the TCP connection as fast as it takes them.
func (k *kernel) pour(h *halt) error {
	msg := k.buf[:k.spec.Size]
	for end := time.Now().Add(k.spec.Warmup + k.spec.Duration); time.Now().Before(end) && !h.now(); {
		if _, err := unix.Write(k.fd, msg); err != nil && !passing(err) {
			return fmt.Errorf("write to TCP: %w", err)
		}
	}
	return nil
}

// drain reads from TCP. It counts bytes, and tells them as messages.
func (k *kernel) drain(h *halt) (outcome, error) {
	w := window{warmup: k.spec.Warmup}
	for {
		n, err := unix.Read(k.fd, k.buf)
		switch {
		case n > 0:
			w.add(time.Now(), uint64(n))
		case err != nil && !passing(err):
			return outcome{}, fmt.Errorf("read from TCP: %w", err)
		case h.now():
			o := w.outcome()
			o.Messages /= uint64(k.spec.Size)
			o.All /= uint64(k.spec.Size)
			return o, nil
		}
	}
}

func (k *kernel) pourUDP(h *halt) error {
	m := newMessages(udpBatch, k.spec.Size)
	for end := time.Now().Add(k.spec.Warmup + k.spec.Duration); time.Now().Before(end) && !h.now(); {
		if _, err := m.send(k.fd); err != nil && !passing(err) && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send UDP: %w", err)
		}
	}
	return nil
}

func (k *kernel) drainUDP(h *halt) (outcome, error) {
	m := newMessages(udpBatch, k.spec.Size)
	w := window{warmup: k.spec.Warmup}
	for {
		n, err := m.receive(k.fd)
		switch {
		case n > 0:
			w.add(time.Now(), uint64(n))
		case err != nil && !passing(err):
			return outcome{}, fmt.Errorf("receive UDP: %w", err)
		case h.now():
			return w.outcome(), nil
		}
	}
}

func (k *kernel) ping(h *halt) (outcome, error) {
	t := newTrips(k.spec)
	var msg [wordSize]byte
	for i := uint64(1); ; i++ {
		binary.LittleEndian.PutUint64(msg[:], i)
		if err := k.send(msg[:]); err != nil {
			return outcome{}, err
		}
		ok, err := k.receive(h, msg[:])
		if err != nil {
			return outcome{}, err
		}
		if !ok || t.done() {
			return t.outcome(), nil
		}
	}
}

func (k *kernel) echo(h *halt) error {
	var msg [wordSize]byte
	for {
		ok, err := k.receive(h, msg[:])
		if err != nil || !ok {
			return err
		}
		if err := k.send(msg[:]); err != nil {
			return err
		}
	}
}

// send sends a short message whole.
func (k *kernel) send(msg []byte) error {
	if err := retry(func() error { return rawSend(k.fd, msg) }); err != nil {
		return fmt.Errorf("send %s: %w", k.spec.Kind, err)
	}
	return nil
}

// receive takes a short message, spinning or blocking; false: it is time to end.
func (k *kernel) receive(h *halt, msg []byte) (bool, error) {
	for turns := 1; ; turns++ {
		var err error
		if k.spec.Spin {
			err = rawReceive(k.fd, msg)
		} else {
			_, _, err = unix.Recvfrom(k.fd, msg, unix.MSG_WAITALL)
		}
		switch {
		case err == nil:
			return true, nil
		case !passing(err):
			return false, fmt.Errorf("receive %s: %w", k.spec.Kind, err)
		case k.spec.Spin && turns%lookEvery != 0:
		case h.now():
			return false, nil
		}
	}
}
