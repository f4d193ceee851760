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
	pingPatience = 10 * time.Millisecond // until an answer counts as lost
	icmpHeader   = 8
	icmpEcho     = 8
)

// startPings begins three pings between the kernels of both ends, each of which sends so often, if its answers come in time. The paper says only
// that they send all the time.
func startPings(pair *veth.Pair, every time.Duration) (end func() error, err error) {
	var stop atomic.Bool
	var all sync.WaitGroup
	errs := make([]error, len(pingSizes))
	for i, size := range pingSizes {
		ping, err := icmpPinger(pair, i, size, every)
		if err != nil {
			stop.Store(true)
			all.Wait()
			return nil, err
		}
		all.Add(1)
		go func() {
			defer all.Done()
			errs[i] = ping(&stop)
		}()
	}
	return func() error {
		stop.Store(true)
		all.Wait()
		return errors.Join(errs...)
	}, nil
}

// icmpPinger is a ping with a short interval.
func icmpPinger(pair *veth.Pair, i, size int, every time.Duration) (func(stop *atomic.Bool) error, error) {
	fd := -1
	err := pair.A.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMP)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open a socket for pings: %w", err)
	}
	wait := unix.NsecToTimeval(pingPatience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &wait); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	to := &unix.SockaddrInet4{Addr: pair.B.IPv4.Addr().As4()}
	return func(stop *atomic.Bool) error {
		defer unix.Close(fd)
		msg, in := make([]byte, icmpHeader+size), make([]byte, 2048)
		for seq := uint16(0); !stop.Load(); seq++ {
			began := time.Now()
			echo(msg, uint16(i), seq)
			if err := unix.Sendto(fd, msg, 0, to); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return fmt.Errorf("send a ping: %w", err)
			}
			for !stop.Load() {
				n, err := unix.Read(fd, in)
				if err != nil || isReply(in[:n], uint16(i), seq) {
					break
				}
			}
			time.Sleep(every - time.Since(began))
		}
		return nil
	}, nil
}

// echo writes an ICMP echo request (RFC 792).
func echo(b []byte, id, seq uint16) {
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

// isReply looks behind the IPv4 header that a raw socket delivers.
func isReply(b []byte, id, seq uint16) bool {
	if len(b) < 20 {
		return false
	}
	b = b[min(len(b), int(b[0]&15)*4):]
	return len(b) >= icmpHeader && b[0] == 0 && binary.BigEndian.Uint16(b[4:]) == id && binary.BigEndian.Uint16(b[6:]) == seq
}
