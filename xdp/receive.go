package xdp

import (
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/prefetch"
	"golang.org/x/sys/unix"
)

// headLines is the number of cache lines of a received frame that Receive prefetches: all headers
// and a short message. They are in the cache of the core on which the kernel received the frame.
const headLines = 2

// A token holds the queue in its upper half and the buffer's index in its lower half.
func token(q int, index uint32) uint64           { return uint64(q)<<32 | uint64(index) }
func untoken(t uint64) (queue int, index uint32) { return int(t >> 32), uint32(t) }

// Receive takes up to len(bufs) frames from the receive rings, polling the queues in turn. It makes
// no system call unless Options.BusyPoll is set or a zero-copy driver waits for buffers. Each frame
// is contiguous.
func (p *Port) Receive(bufs []driver.Buf) int {
	if !p.enter() {
		return 0
	}
	n := 0
	for range p.queues {
		i := p.next
		if p.next++; p.next == len(p.queues) {
			p.next = 0
		}
		if n += p.receive(i, bufs[n:]); n == len(bufs) {
			break
		}
	}
	p.out += n
	p.leave()
	return n
}

// receive takes frames from one queue.
func (p *Port) receive(qi int, bufs []driver.Buf) int {
	q := p.queues[qi]
	ready := q.rx.ready(uint32(len(bufs)))
	if ready == 0 {
		p.pokeIdle(q)
		return 0
	}
	waiting := ready
	n, used := 0, uint32(0)
	bytes := 0
	for n < len(bufs) && used < ready {
		d := q.rx.at(used)
		at, size, pieces := d.Addr, int(d.Len), uint32(1)
		if d.Options&unix.XDP_PKT_CONTD != 0 {
			size, pieces = p.join(q, used, &ready)
			if pieces == 0 {
				break // the rest of the frame has not arrived yet
			}
		}
		used += pieces
		index := uint32(at >> q.shift)
		if size == 0 {
			q.recycle(index)
			p.stats.RxDropped++
			continue
		}
		end := uint64(index+1) << q.shift
		bufs[n] = driver.Buf{B: q.umem[at : at+uint64(size) : end], Token: token(qi, index)}
		prefetch.Bytes(bufs[n].B, headLines)
		bytes += size
		n++
	}
	if used > 0 {
		q.rx.skip(used)
		q.rx.consumed()
		q.taken(used, waiting)
		if used > uint32(n) {
			q.topUp() // join or a dropped frame has freed buffers
		}
	}
	p.stats.RxFrames += uint64(n)
	p.stats.RxBytes += uint64(bytes)
	return n
}

// join makes a frame of several descriptors contiguous. first is the index of its first descriptor
// among those that are ready. It copies the later parts to the end of the first part. The kernel
// fills a chunk before it uses the next one, so in copy mode the first part ends where the second
// chunk of the buffer begins, and only the short rest is copied. Drivers that end the first part
// earlier are supported, too.
//
// join returns the size of the frame, or 0 if the frame does not fit in a buffer and must be
// dropped, and the number of descriptors, or 0 if the last one is not ready yet.
func (p *Port) join(q *queue, first uint32, ready *uint32) (size int, pieces uint32) {
	for {
		if first+pieces == *ready {
			if *ready = q.rx.ready(*ready + 1); first+pieces == *ready {
				return 0, 0
			}
		}
		d := q.rx.at(first + pieces)
		size += int(d.Len)
		pieces++
		if d.Options&unix.XDP_PKT_CONTD == 0 {
			break
		}
	}
	head := q.rx.at(first)
	at := head.Addr + uint64(head.Len)
	end := (head.Addr>>q.shift + 1) << q.shift
	if head.Addr+uint64(size) > end {
		size = 0
	}
	for i := uint32(1); i < pieces; i++ {
		d := q.rx.at(first + i)
		if size > 0 {
			at += uint64(copy(q.umem[at:end], q.umem[d.Addr:d.Addr+uint64(d.Len)]))
		}
		q.recycle(uint32(d.Addr >> q.shift))
	}
	return size, pieces
}

// pokeIdle handles an empty receive ring. With busy-polling, a system call makes the NIC's queue
// run. A zero-copy driver that ran out of buffers asks for a system call after new ones were added.
func (p *Port) pokeIdle(q *queue) {
	if p.busyPoll || (q.zeroCopy && q.fill.needWakeup()) {
		_ = kickRx(q.fd)
	}
}

// Release returns received frames to the kernel.
func (p *Port) Release(bufs []driver.Buf) {
	if len(bufs) == 0 {
		return
	}
	if !p.enter() {
		p.returnLate(len(bufs))
		return
	}
	last := -1
	for i := range bufs {
		qi, index := untoken(bufs[i].Token)
		if qi != last && last >= 0 {
			p.refilled(p.queues[last])
		}
		last = qi
		q := p.queues[qi]
		q.recycle(index)
		bufs[i] = driver.Buf{}
	}
	p.refilled(p.queues[last])
	p.out -= len(bufs)
	p.leave()
}

func (p *Port) refilled(q *queue) {
	q.topUp()
	if q.fill.needWakeup() {
		_ = kickRx(q.fd)
	}
}
