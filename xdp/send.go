//go:build linux

package xdp

import (
	"github.com/gorxe/gorxe/driver"
	"golang.org/x/sys/unix"
)

// maxStalls limits how often kick repeats the system call without progress. The frames then stay in
// the ring until a later kick.
const maxStalls = 256

// minFrame is the length of an Ethernet header, the kernel's minimum.
const minFrame = etherLen

// Alloc returns up to len(bufs) send buffers. A frame must start at the first byte of B.
func (p *Port) Alloc(bufs []driver.Buf) int {
	if !p.enter() {
		return 0
	}
	q := p.queues[0]
	q.reap()
	n := min(len(bufs), len(q.txFree))
	size := uint64(p.net.state.Load().info.MaxFrame)
	for i := range n {
		last := len(q.txFree) - 1
		index := q.txFree[last]
		q.txFree = q.txFree[:last]
		at := uint64(index) << q.shift
		bufs[i] = driver.Buf{B: q.umem[at : at+size : at+uint64(q.stride())],
			Token: token(0, index)}
	}
	p.out += n
	p.leave()
	return n
}

// Free returns buffers from Alloc that will not be sent.
func (p *Port) Free(bufs []driver.Buf) {
	if !p.enter() {
		p.returnLate(len(bufs))
		return
	}
	for i := range bufs {
		p.queues[0].free(&bufs[i])
	}
	p.out -= len(bufs)
	p.leave()
}

// Send sends frames in order and repeats the system call until the kernel has taken all of them;
// see driver.Port. Frames that the kernel could not deliver are dropped and counted: the peer's
// queue is full, or its MTU is smaller. While the interface is down all frames are dropped, and the
// error is ErrLinkDown. If the kernel accepts no more frames because the peer does not take them,
// the rest stays in the ring and is sent by a later call.
func (p *Port) Send(bufs []driver.Buf) (n int, err error) {
	if len(bufs) == 0 {
		return 0, nil
	}
	if !p.enter() {
		p.returnLate(len(bufs))
		return 0, ErrClosed
	}
	p.out -= len(bufs)
	before, packets := p.stats.TxDropped, packetsIn(bufs)
	switch q := p.queues[0]; {
	case p.bulk.sender == nil:
		p.send(q, bufs)
	case packets > len(bufs): // LeastRun permits no runs of one packet
		p.sendRuns(q, bufs)
	default:
		p.sendMixed(q, bufs)
	}
	if p.down {
		err = ErrLinkDown
		if p.net.state.Load().gone {
			err = ErrGone
		}
	}
	n = max(0, packets-int(p.stats.TxDropped-before))
	p.stats.TxFrames += uint64(n)
	p.leave()
	return n, err
}

func (p *Port) send(q *queue, bufs []driver.Buf) {
	if p.down {
		// At most the frames of the call that found the interface down are in the ring. Add none
		// before they have left.
		if p.kick(q); p.down {
			for i := range bufs {
				p.drop(q, &bufs[i])
			}
			return
		}
	}
	bytes := 0
	for i := range bufs {
		size := len(bufs[i].B)
		if !q.submit(&bufs[i]) {
			p.drop(q, &bufs[i])
			continue
		}
		bytes += size
	}
	p.stats.TxBytes += uint64(bytes)
	q.tx.publish()
	p.kick(q)
}

func (p *Port) drop(q *queue, b *driver.Buf) {
	q.free(b)
	p.stats.TxDropped++
}

// submit puts the descriptors of a frame on the transmit ring. It returns false if the frame's
// length is out of range or the ring is full.
func (q *queue) submit(b *driver.Buf) bool {
	size := uint32(len(b.B))
	if size < minFrame || size > q.stride() {
		return false
	}
	_, index := untoken(b.Token)
	at := uint64(index) << q.shift
	descs := uint32(1)
	if size > chunkSize {
		descs = 2
	}
	if q.tx.space(descs) < descs {
		return false
	}
	if descs == 2 {
		q.tx.put(unix.XDPDesc{Addr: at, Len: chunkSize, Options: unix.XDP_PKT_CONTD})
		at, size = at+chunkSize, size-chunkSize
	}
	q.tx.put(unix.XDPDesc{Addr: at, Len: size})
	q.txDesc[index-q.rxCount] = uint8(descs)
	*b = driver.Buf{}
	return true
}

func (q *queue) free(b *driver.Buf) {
	_, index := untoken(b.Token)
	q.txFree = append(q.txFree, index)
	*b = driver.Buf{}
}

// reap collects completed send buffers. A buffer is free when all its descriptors are completed, in
// any order.
func (q *queue) reap() {
	n := q.comp.ready(1)
	if n == 0 {
		return
	}
	for i := range n {
		index := uint32(*q.comp.at(i) >> q.shift)
		left := &q.txDesc[index-q.rxCount]
		if *left--; *left == 0 {
			q.txFree = append(q.txFree, index)
		}
	}
	q.comp.skip(n)
	q.comp.consumed()
}

// kick makes the kernel send what is in the transmit ring. In copy mode the system call sends the
// frames itself, up to a limit per call (32 descriptors, or kickBudget). The errors mean:
//
//	EAGAIN, ENOBUFS, ENOMEM  limit reached, completion ring or socket buffer full: reap and repeat
//	EBUSY                    a frame was taken but could not be delivered: lost
//	EOVERFLOW, EINVAL ...    the kernel considers a frame malformed: lost
//	ENETDOWN, ENXIO          interface down or removed: the frames stay in the ring
func (p *Port) kick(q *queue) {
	for stalls := 0; stalls < maxStalls; {
		if !q.tx.needWakeup() {
			p.down = false
			return // a zero-copy driver is already processing the ring
		}
		before := q.tx.seen
		p.stats.Kicks++
		e := kickTx(q.fd)
		left := q.tx.queued()
		switch e {
		case 0:
			p.down = false
			if left == 0 || q.zeroCopy {
				return
			}
		case unix.EBUSY:
			p.stats.TxDropped++
		case unix.ENETDOWN, unix.ENXIO, unix.ENODEV:
			p.down = true
			return
		case unix.EAGAIN, unix.ENOBUFS, unix.ENOMEM, unix.EINTR:
		default:
			p.stats.TxDropped++
		}
		q.reap()
		if left == 0 {
			p.down = false
			return
		}
		if q.tx.seen == before {
			stalls++
		} else {
			stalls = 0
		}
	}
}
