//go:build linux

package xdp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/udpmsg"
	"golang.org/x/sys/unix"
)

// Long runs of frames do not go through the transmit ring, but through UDP sockets, which carry a
// run as one super-frame (package udpmsg). The ring costs the kernel more for each frame, and the
// socket costs more for a frame that is alone.
const (
	bulkFrames = 4       // of a run, at least
	bulkBytes  = 8 << 10 // of a run, at least, or
	bulkMany   = 32      // frames
)

// bulk is the part of a Port that sends runs through sockets. The owner uses it.
type bulk struct {
	sender  *udpmsg.Sender // nil: there are no sockets
	v4, v6  udpmsg.Socket
	frames  []driver.Buf // passed to sender
	rest    []driver.Buf // of sendRuns: those that go through the ring
	head    run          // headers of the frame before a run
	counted driver.Stats // of sender; they are part of Port.stats
	enc     frame.Encoder
	active  bool // runs were sent
	open    bool // the kernel did not refuse any packet of the latest runs
	// bounded says that the owner wants to know the backlog, which does not include what was sent
	// through sockets.
	bounded bool
	refused error // the latest with which the kernel refused a run
	note    atomic.Pointer[string]
}

// openBulk opens the sockets in the network namespace of the calling thread. Without them, all
// frames go through the ring. So they do in native mode, in which drivers send without a detour,
// and in which the kernel has no super-frames.
func (o *opener) openBulk() {
	p := &o.Port
	if !o.Runs || p.prog.mode != Generic {
		return
	}
	v4, err := udpmsg.OpenSocket(p.net.index, false)
	if err != nil {
		return
	}
	v6, err := udpmsg.OpenSocket(p.net.index, true)
	if err != nil {
		v6.FD = -1 // IPv6 is disabled
	}
	b := &p.bulk
	b.v4, b.v6, b.sender = v4, v6, udpmsg.NewSender()
	b.sender.Index, b.sender.KeepRefused = p.net.index, true
	b.sender.Note = func(text string) {
		b.note.Store(&text)
		p.net.notify()
	}
	b.sender.Refused = func(err error) {
		if !errors.Is(err, b.refused) {
			b.refused = err
			b.sender.Note(fmt.Sprintf("the kernel refuses to send packets together (%v), so they are "+
				"sent one by one: %s", err, udpmsg.Advice(err)))
		}
	}
}

func (b *bulk) close() {
	if b.sender == nil {
		return
	}
	_ = unix.Close(b.v4.FD)
	if b.v6.FD >= 0 {
		_ = unix.Close(b.v6.FD)
	}
}

// headersOf returns the length of the headers before the BTH, 0 if the frame has others than those
// that a socket writes.
func headersOf(b []byte) int {
	n := 0
	if len(b) >= etherLen {
		switch binary.BigEndian.Uint16(b[etherTypeOff:]) {
		case udpmsg.EtherIPv4:
			n = udpmsg.LenV4
		case udpmsg.EtherIPv6:
			n = udpmsg.LenV6
		}
	}
	if len(b) < n+bth.HeaderLen {
		return 0
	}
	return n
}

// destination returns the destination address of a frame with headers of n bytes.
func destination(b []byte, n int) []byte {
	if n == udpmsg.LenV4 {
		return b[etherLen+16 : etherLen+20]
	}
	return b[etherLen+24 : etherLen+40]
}

// socket returns the socket for frames with headers of n bytes.
func (b *bulk) socket(n int) udpmsg.Socket {
	if n == udpmsg.LenV6 {
		return b.v6
	}
	return b.v4
}

// find returns the destination address of the first run among frames that is long enough, and the
// length of its headers; 0: there is none. It does not compare more than destination and length:
// the frames may become several runs.
func (b *bulk) find(bufs []driver.Buf) (dst []byte, n int) {
	count, bytes := 0, 0
	for i := range bufs {
		f := bufs[i].B
		if count > 0 && len(f) == len(bufs[i-1].B) && string(destination(f, n)) == string(dst) {
			bytes += len(f)
			if count++; count >= bulkFrames && bytes >= bulkBytes || count >= bulkMany {
				if b.sender.Accepts(f, n) {
					return dst, n
				}
				return nil, 0
			}
			continue
		}
		count = 0
		if n = headersOf(f); n != 0 {
			dst, count, bytes = destination(f, n), 1, len(f)
		}
	}
	return nil, 0
}

// sendMixed sends frames through the ring, and those to one peer through a socket if they contain a
// long run. The order of frames to a peer does not change, because the kernel has taken all frames
// in the ring when kick returns.
func (p *Port) sendMixed(q *queue, bufs []driver.Buf) {
	b := &p.bulk
	var dst []byte
	n := 0
	if len(bufs) >= bulkFrames && !p.down && !b.bounded && q.tx.queued() == 0 {
		dst, n = b.find(bufs)
	}
	b.bounded = false
	socket := b.socket(n)
	if n == 0 || socket.FD < 0 || !socket.Runs {
		if b.active {
			b.observe(bufs)
		}
		p.send(q, bufs)
		return
	}
	b.active = true
	rest := 0
	for i := range bufs {
		f := bufs[i].B
		if !b.sender.Next(f) {
			if headersOf(f) != n || string(destination(f, n)) != string(dst) {
				bufs[rest] = bufs[i]
				rest++
				continue
			}
			b.sender.Add(socket, f, n)
		}
		b.frames = append(b.frames, bufs[i])
	}
	p.flushBulk(q)
	if rest > 0 {
		b.observe(bufs[:rest])
		p.send(q, bufs[:rest])
	}
}

// observe tells the sender about frames that are sent through the ring.
func (b *bulk) observe(bufs []driver.Buf) {
	for i := range bufs {
		if n := headersOf(bufs[i].B); n != 0 {
			b.sender.Observe(bufs[i].B, n)
		}
	}
}
