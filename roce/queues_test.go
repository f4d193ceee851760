package roce

import (
	"encoding/binary"
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// wanderer is a port that sends its frames through the kernel, each from another UDP source port.
// So the hash of the kernel spreads the packets of one QP over all queues, like the worst case of
// receive side scaling.
type wanderer struct {
	driver.Port
	fd    int
	ports uint16
}

func newWanderer(t *testing.T, e *veth.End) *wanderer {
	t.Helper()
	w := &wanderer{fd: -1}
	var err error
	w.Port, err = xdp.Open(e.Iface, xdp.Options{NetNS: e.Fd(), Mode: xdp.Native})
	must(t, err)
	must(t, e.Do(func() error {
		if w.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		ifr, err := unix.NewIfreq(e.Iface)
		if err == nil {
			err = unix.IoctlIfreq(w.fd, unix.SIOCGIFINDEX, ifr)
		}
		if err != nil {
			return err
		}
		return unix.Bind(w.fd, &unix.SockaddrLinklayer{Ifindex: int(ifr.Uint32())})
	}))
	t.Cleanup(func() { _ = unix.Close(w.fd) })
	return w
}

func (w *wanderer) Unwrap() driver.Port { return w.Port }

func (w *wanderer) Send(bufs []driver.Buf) (n int, err error) {
	for _, b := range bufs {
		netLen := len(b.B) - len(frame.PeekBTH(b.B))
		w.ports++
		binary.BigEndian.PutUint16(b.B[netLen-8:], 0xc000+w.ports%16)
		end := len(b.B) - bth.ICRCLen
		crc, ok := frame.ICRC(b.B[netLen-20-8 : end]) // IPv4, UDP
		if !ok {
			err = errors.New("wanderer: not RoCEv2 over IPv4")
			continue
		}
		binary.LittleEndian.PutUint32(b.B[end:], crc)
		if _, e := unix.Write(w.fd, b.B); e != nil {
			err = e
			continue
		}
		n++
	}
	w.Port.Free(bufs)
	return n, err
}

// byQueue counts the frames of a port by receive queue, which is in the upper half of their token.
type byQueue struct {
	driver.Port
	frames map[uint64]int
}

func (c *byQueue) Unwrap() driver.Port { return c.Port }

func (c *byQueue) Receive(bufs []driver.Buf) int {
	n := c.Port.Receive(bufs)
	for _, b := range bufs[:n] {
		c.frames[b.Token>>32]++
	}
	return n
}

// TestOneQPOverTwoQueues: a device serves all queues of its interface. When the packets of one QP
// arrive on several, out of order, all operations still complete with the right data.
func TestOneQPOverTwoQueues(t *testing.T) {
	pair := newVeth(t, veth.Options{Queues: 2})
	p, err := xdp.Open(pair.B.Iface, xdp.Options{NetNS: pair.B.Fd(), Mode: xdp.Native})
	must(t, err)
	count := &byQueue{Port: p, frames: map[uint64]int{}}
	var ends [2]*end
	for i, port := range []driver.Port{newWanderer(t, &pair.A), count} {
		d, err := New(port, WithProgress(Manual))
		must(t, err)
		t.Cleanup(func() { _ = d.Close() })
		ends[i] = newEnd(t, d, rigConfig{})
	}
	a, b := ends[0], ends[1]
	if n := b.Info().Queues; n != 2 {
		t.Fatalf("%d queues, want 2", n)
	}
	connect(t, a.qp, b.qp)
	for range 5 {
		conversation(t, a, b)
		conversation(t, b, a)
	}
	if count.frames[0] == 0 || count.frames[1] == 0 {
		t.Errorf("frames by queue: %v, want some on both", count.frames)
	}
	t.Logf("frames by queue: %v, out of order: %d", count.frames, b.Counters().OutOfSeqRequest)
}
