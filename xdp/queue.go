package xdp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bindPatience is how long a bind that finds the queue taken is tried again: the kernel lets
// go of a closed socket's queue a little later, from a work queue.
const (
	bindPatience = 2 * time.Second
	bindPause    = 2 * time.Millisecond
)

const (
	// sendBuffer bounds the bytes that sent frames may occupy in the kernel until the other end
	// has taken them. The default holds only some 30 long frames.
	sendBuffer = 16 << 20
	// kickBudget is how many descriptors a kick may send, where the kernel lets that be set
	// (6.17 and later); 32 elsewhere.
	kickBudget = 128

	// Socket options that x/sys does not name.
	soPreferBusyPoll = 69
	soBusyPollBudget = 70
	busyPollBudget   = 64
)

// queue is the AF_XDP socket of one NIC queue with a UMEM of its own.
//
// The UMEM is an array of buffers of "stride" bytes: the first rxCount are for receiving, the
// rest for transmission. With multi-buffer a buffer is two chunks, of which
// the kernel is given only the first to receive into: a frame that needs more arrives
// in several chunks, and its short rest is copied into the second one, right behind
// the head piece. A long frame to transmit lies in both chunks and takes two descriptors.
type queue struct {
	fd   int
	id   uint32
	umem []byte

	rx, tx     ring[unix.XDPDesc]
	fill, comp ring[uint64]

	refill
	shift    uint32 // stride = 1 << shift
	rxCount  uint32
	zeroCopy bool

	txFree []uint32 // indices of free transmit buffers; the last is the warmest in the cache
	txDesc []uint8  // per transmit buffer: descriptors that the kernel has not completed
}

// layout says how a queue is built.
type layout struct {
	id       uint32
	ring     int
	chunks   int
	multi    bool // buffers of two chunks
	adapt    bool // how many receive buffers the kernel has follows the load
	transmit bool // this queue transmits too
	busyPoll int  // us
}

func (q *queue) stride() uint32 { return 1 << q.shift }

// newQueue makes the socket with its memory and rings; bind comes later. On error nothing is left.
func newQueue(l *layout) (q *queue, err error) {
	q = &queue{fd: -1, id: l.id, shift: 12, rxCount: uint32(l.chunks)}
	if l.multi {
		q.shift = 13
	}
	defer func() {
		if err != nil {
			q.close()
			q.unmapUMEM()
			q = nil
		}
	}()
	if q.fd, err = openSocket(); err != nil {
		return q, err
	}
	if err = q.makeUMEM(l); err != nil {
		return q, err
	}
	if err = q.makeRings(l); err != nil {
		return q, err
	}
	q.tune(l)
	q.initRefill(l.adapt)
	return q, nil
}

func openSocket() (int, error) {
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.EAFNOSUPPORT):
		return -1, fmt.Errorf("%w: this kernel has no AF_XDP sockets (CONFIG_XDP_SOCKETS)", ErrUnsupported)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return -1, fmt.Errorf("%w: an AF_XDP socket needs CAP_NET_RAW; run as root or grant it", ErrPermission)
	case err != nil:
		return -1, fmt.Errorf("make AF_XDP socket: %w", err)
	}
	return fd, nil
}

// kernelHasMultiBuffer says whether AF_XDP sockets take frames of several buffers. The kernel looks at the
// flags of a bind first: with a flag that it knows it goes on to miss the interface.
func kernelHasMultiBuffer() bool {
	fd, err := openSocket()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	const noInterface = 1<<31 - 1
	return errors.Is(unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_USE_SG, Ifindex: noInterface}), unix.ENODEV)
}

func (q *queue) makeUMEM(l *layout) error {
	buffers := l.chunks
	if l.transmit {
		buffers *= 2
		q.txDesc = make([]uint8, l.chunks)
		q.txFree = make([]uint32, 0, l.chunks)
		for i := l.chunks; i > 0; i-- {
			q.txFree = append(q.txFree, uint32(l.chunks+i-1))
		}
	}
	mem, err := unix.Mmap(-1, 0, buffers<<q.shift, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map %d MiB of packet memory: %w", buffers<<q.shift>>20, err)
	}
	q.umem = mem
	switch err := registerUMEM(q.fd, mem); {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: locking %d MiB of packet memory needs CAP_IPC_LOCK or a higher `ulimit -l`", ErrPermission, len(mem)>>20)
	case err != nil:
		return fmt.Errorf("register packet memory: %w", err)
	}
	return nil
}

func (q *queue) makeRings(l *layout) error {
	comp := smallRing
	sizes := []struct{ opt, n int }{{unix.XDP_RX_RING, l.ring}, {unix.XDP_UMEM_FILL_RING, l.ring}}
	if l.transmit {
		// Two descriptors a buffer at most.
		comp = l.ring * 2
		sizes = append(sizes, struct{ opt, n int }{unix.XDP_TX_RING, l.ring})
	}
	sizes = append(sizes, struct{ opt, n int }{unix.XDP_UMEM_COMPLETION_RING, comp})
	for _, s := range sizes {
		if err := unix.SetsockoptInt(q.fd, unix.SOL_XDP, s.opt, s.n); err != nil {
			return fmt.Errorf("set AF_XDP ring size %d: %w", s.n, err)
		}
	}
	off, err := ringOffsets(q.fd)
	if err != nil {
		return fmt.Errorf("ask for AF_XDP ring offsets: %w", err)
	}
	if off.Fr.Flags == 0 {
		return fmt.Errorf("%w: this kernel's AF_XDP has no need-wakeup flag (Linux 5.4 or later is needed)", ErrUnsupported)
	}
	err = errors.Join(
		mapRing(&q.rx, q.fd, unix.XDP_PGOFF_RX_RING, l.ring, &off.Rx),
		mapRing(&q.fill, q.fd, unix.XDP_UMEM_PGOFF_FILL_RING, l.ring, &off.Fr),
		mapRing(&q.comp, q.fd, unix.XDP_UMEM_PGOFF_COMPLETION_RING, comp, &off.Cr),
	)
	if l.transmit {
		err = errors.Join(err, mapRing(&q.tx, q.fd, unix.XDP_PGOFF_TX_RING, l.ring, &off.Tx))
	}
	return err
}

// tune sets options that make things better where they can be had.
func (q *queue) tune(l *layout) {
	if l.transmit {
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, min(kickBudget, l.ring))
	}
	if l.busyPoll > 0 {
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, soPreferBusyPoll, 1)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, l.busyPoll)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, soBusyPollBudget, busyPollBudget)
	}
}

// bind ties the socket to its queue of interface index, with the bind flags given, waiting a little
// for a predecessor to vanish.
func (q *queue) bind(index int, flags uint16) error {
	sa := &unix.SockaddrXDP{Flags: flags | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(index), QueueID: q.id}
	deadline := time.Now().Add(bindPatience)
	for {
		err := unix.Bind(q.fd, sa)
		if !errors.Is(err, unix.EBUSY) {
			if err == nil {
				q.zeroCopy = isZeroCopy(q.fd)
				q.tx.strict, q.fill.strict = q.zeroCopy, q.zeroCopy
			}
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: another AF_XDP socket holds queue %d; end the program that uses it", ErrBusy, q.id)
		}
		time.Sleep(bindPause)
	}
}

// close closes the socket and its rings, but leaves the UMEM, into which frames in use may point.
func (q *queue) close() {
	if q.fd >= 0 {
		_ = unix.Close(q.fd)
		q.fd = -1
	}
	q.rx.unmap()
	q.tx.unmap()
	q.fill.unmap()
	q.comp.unmap()
}

func (q *queue) unmapUMEM() {
	if q.umem != nil {
		_ = unix.Munmap(q.umem)
		q.umem = nil
	}
}
