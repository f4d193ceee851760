//go:build linux

package xdp

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// bindPatience is how long bind retries if the queue is in use. The kernel releases the queue of a
// closed socket asynchronously.
const (
	bindPatience = 2 * time.Second
	bindPause    = 2 * time.Millisecond
)

const (
	// sendBuffer limits the bytes of sent frames that the kernel holds until the peer has taken
	// them. The default limit holds only about 30 long frames.
	sendBuffer = 16 << 20
	// kickBudget is the number of descriptors that one kick may send on Linux 6.17 and later. Older
	// kernels send 32.
	kickBudget = 128

	// Socket options that x/sys does not define.
	soPreferBusyPoll = 69
	soBusyPollBudget = 70
	busyPollBudget   = 64
)

// queue is the AF_XDP socket of one NIC queue with its own packet memory (UMEM).
//
// The UMEM is an array of buffers of stride bytes: the first rxCount are for receiving, the others
// for sending. With multi-buffer, a buffer has two chunks, and the kernel receives only into the
// first one. If a received frame needs several chunks, its short rest is copied to the second chunk
// of the first buffer, directly after the first part. A long frame to send is in both chunks and
// takes two descriptors.
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

	run     run  // the run whose packets Receive returns
	endless bool // the descriptors up to the next end of a frame are dropped

	txFree []uint32 // indices of free send buffers, the most recently used last
	txDesc []uint8  // per send buffer: descriptors that the kernel has not completed

	backlog
}

// layout is the configuration of a queue.
type layout struct {
	id       uint32
	ring     int
	chunks   int
	multi    bool // buffers have two chunks
	adapt    bool // the number of receive buffers that the kernel gets follows the load
	transmit bool // this queue also sends
	busyPoll int  // microseconds
}

func (q *queue) stride() uint32 { return 1 << q.shift }

// newQueue creates the socket, its memory and its rings, but does not bind it. After an error
// nothing remains open.
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
		return -1, fmt.Errorf("%w: the kernel does not support AF_XDP sockets (CONFIG_XDP_SOCKETS)",
			ErrUnsupported)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return -1, fmt.Errorf("%w: AF_XDP sockets require CAP_NET_RAW: run as root or grant it",
			ErrPermission)
	case err != nil:
		return -1, fmt.Errorf("create AF_XDP socket: %w", err)
	}
	return fd, nil
}

// kernelHasMultiBuffer reports whether AF_XDP sockets support multi-buffer. The kernel checks the
// flags of a bind before the interface index, so a supported flag leads to the error for a missing
// interface.
func kernelHasMultiBuffer() bool {
	fd, err := openSocket()
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	const noInterface = 1<<31 - 1
	return errors.Is(unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_USE_SG, Ifindex: noInterface}),
		unix.ENODEV)
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
	mem, err := unix.Mmap(-1, 0, buffers<<q.shift, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map %d MiB of packet memory: %w", buffers<<q.shift>>20, err)
	}
	q.umem = mem
	switch err := registerUMEM(q.fd, mem); {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w: locking %d MiB of packet memory requires CAP_IPC_LOCK or a higher `ulimit -l`", ErrPermission, len(mem)>>20)
	case err != nil:
		return fmt.Errorf("register packet memory: %w", err)
	}
	return nil
}

func (q *queue) makeRings(l *layout) error {
	comp := smallRing
	sizes := []struct{ opt, n int }{{unix.XDP_RX_RING, l.ring}, {unix.XDP_UMEM_FILL_RING, l.ring}}
	if l.transmit {
		// A buffer has at most two descriptors.
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
		return fmt.Errorf("get AF_XDP ring offsets: %w", err)
	}
	if off.Fr.Flags == 0 {
		return fmt.Errorf("%w: the need-wakeup flag of AF_XDP requires Linux 5.4", ErrUnsupported)
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

// tune sets options that improve performance and are not essential.
func (q *queue) tune(l *layout) {
	if l.transmit {
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, sendBuffer)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET,
			min(kickBudget, l.ring))
	}
	if l.busyPoll > 0 {
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, soPreferBusyPoll, 1)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, unix.SO_BUSY_POLL, l.busyPoll)
		_ = unix.SetsockoptInt(q.fd, unix.SOL_SOCKET, soBusyPollBudget, busyPollBudget)
	}
}

// bind binds the socket to its queue of the interface. It retries for a while if a closed socket
// still holds the queue.
func (q *queue) bind(index int, flags uint16) error {
	sa := &unix.SockaddrXDP{Flags: flags | unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(index),
		QueueID: q.id}
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
			return fmt.Errorf("%w: another AF_XDP socket uses queue %d: end its process", ErrBusy,
				q.id)
		}
		time.Sleep(bindPause)
	}
}

// close closes the socket and its rings. The UMEM stays mapped, because buffers may be in use.
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
