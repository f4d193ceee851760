package indirect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/xdp/veth"
)

const (
	pingTimeout = 10 * time.Millisecond // after which a reply counts as lost
	icmpHeader  = 8
	icmpEcho    = 8
	minIPv4     = 20
)

// startPings starts three pings between the kernels of the two sides. Each sends a request per
// interval, or as soon as the reply has arrived if that takes longer. stop ends them.
func startPings(pair *veth.Pair, interval time.Duration) (stop func() error, err error) {
	var stopped atomic.Bool
	var all sync.WaitGroup
	errs := make([]error, len(pingSizes))
	stop = func() error {
		stopped.Store(true)
		all.Wait()
		return errors.Join(errs...)
	}
	for i, size := range pingSizes {
		fd, err := icmpSocket(pair)
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		all.Go(func() {
			defer unix.Close(fd)
			to := &unix.SockaddrInet4{Addr: pair.B.IPv4.Addr().As4()}
			errs[i] = ping(fd, to, uint16(i), size, interval, &stopped)
		})
	}
	return stop, nil
}

// icmpSocket opens a raw socket in the namespace of the first side.
func icmpSocket(pair *veth.Pair) (fd int, err error) {
	err = pair.A.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		return -1, fmt.Errorf("open a raw ICMP socket: %w", err)
	}
	wait := unix.NsecToTimeval(pingTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

// ping sends echo requests and waits for the replies until stopped is set.
func ping(
	fd int, to unix.Sockaddr, id uint16, size int, interval time.Duration, stopped *atomic.Bool,
) error {
	msg, in := make([]byte, icmpHeader+size), make([]byte, 2048)
	for seq := uint16(0); !stopped.Load(); seq++ {
		begin := time.Now()
		putEcho(msg, id, seq)
		if err := unix.Sendto(fd, msg, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("send a ping: %w", err)
		}
		for !stopped.Load() {
			n, err := unix.Read(fd, in)
			if err != nil || isReply(in[:n], id, seq) {
				break
			}
		}
		time.Sleep(interval - time.Since(begin))
	}
	return nil
}

// putEcho writes an ICMP echo request (RFC 792) of len(b) bytes.
func putEcho(b []byte, id, seq uint16) {
	b[0], b[1], b[2], b[3] = icmpEcho, 0, 0, 0
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	sum := uint32(0)
	for k := 0; k+1 < len(b); k += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[k:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[2:], ^uint16(sum))
}

// isReply reports whether b, an IPv4 packet from a raw socket, is the reply to an echo request.
func isReply(b []byte, id, seq uint16) bool {
	if len(b) < minIPv4 {
		return false
	}
	b = b[min(len(b), int(b[0]&15)*4):]
	return len(b) >= icmpHeader && b[0] == 0 &&
		binary.BigEndian.Uint16(b[4:]) == id && binary.BigEndian.Uint16(b[6:]) == seq
}
