//go:build linux

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
	waiting, spare := ready, len(q.spare)
	q.prefetch(min(ready, uint32(len(bufs))))
	n, used := 0, uint32(0)
	for n < len(bufs) && used < ready {
		d := q.rx.at(used)
		size, pieces := int(d.Len), uint32(1)
		if d.Options&unix.XDP_PKT_CONTD != 0 || q.endless {
			if size, pieces = q.measure(used, &ready); pieces == 0 {
				break // the rest of the frame has not arrived yet
			}
		}
		k, done := p.take(qi, used, pieces, size, bufs[n:])
		n += k
		if !done {
			break
		}
		used += pieces
	}
	if used > 0 {
		q.rx.skip(used)
		q.rx.consumed()
		q.taken(used, waiting)
		if len(q.spare) > spare { // buffers of dropped frames, of runs, and of the rests of frames
			q.topUp()
		}
	}
	p.stats.RxFrames += uint64(n)
	for i := range bufs[:n] {
		p.stats.RxBytes += uint64(len(bufs[i].B))
	}
	return n
}

// take stores a frame of the given number of descriptors in bufs, or the packets of a run. first is
// the index of the first descriptor among those that are ready. take returns the number of buffers
// used, and false if the descriptors are still needed because bufs is full.
func (p *Port) take(qi int, first, pieces uint32, size int, bufs []driver.Buf) (n int, done bool) {
	q := p.queues[qi]
	what := ordinary
	switch {
	case q.run.left > 0:
		what = isRun
	case size == 0 || size > p.capacity && !p.splits:
		what = forged
	case p.splits:
		what = p.inspect(q, first, size)
	}
	switch what {
	case ordinary:
		if !q.join(first, pieces, size) {
			break
		}
		at := q.rx.at(first).Addr
		index := uint32(at >> q.shift)
		end := uint64(index+1) << q.shift
		bufs[0] = driver.Buf{B: q.umem[at : at+uint64(size) : end], Token: token(qi, index)}
		return 1, true
	case isRun:
		if n = p.packets(q, first, bufs); q.run.left > 0 {
			return n, false
		}
		q.recycleAll(first, pieces)
		return n, true
	case wait:
		return 0, false
	}
	p.stats.RxDropped++
	q.recycleAll(first, pieces)
	return 0, true
}

// prefetch brings the headers of the first n descriptors into the cache.
func (q *queue) prefetch(n uint32) {
	if q.run.left > 0 {
		return
	}
	for i := range n {
		d := q.rx.at(i)
		prefetch.Bytes(q.umem[d.Addr:d.Addr+uint64(d.Len)], headLines)
	}
}

// maxPieces limits the descriptors of a frame. The longest run needs 18 of them.
const maxPieces = 64

// measure returns the size of a frame and the number of its descriptors, or 0 descriptors if the
// last one is not ready yet. The size is 0 if the frame has too many descriptors and must be
// dropped. first is the index of its first descriptor among those that are ready.
func (q *queue) measure(first uint32, ready *uint32) (size int, pieces uint32) {
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
		if pieces == maxPieces {
			q.endless = true // the next call continues with the rest of the frame
			return 0, pieces
		}
	}
	if q.endless {
		q.endless = false
		return 0, pieces
	}
	return size, pieces
}

// join makes a frame of several descriptors contiguous. It copies the later parts to the end of the
// first part. The kernel fills a chunk before it uses the next one, so in copy mode the first part
// ends where the second chunk of the buffer begins, and only the short rest is copied. Drivers that
// end the first part earlier are supported, too. join returns false if the frame does not fit.
func (q *queue) join(first, pieces uint32, size int) bool {
	if pieces == 1 {
		return true
	}
	head := q.rx.at(first)
	at := head.Addr + uint64(head.Len)
	end := (head.Addr>>q.shift + 1) << q.shift
	if head.Addr+uint64(size) > end {
		return false
	}
	for i := uint32(1); i < pieces; i++ {
		d := q.rx.at(first + i)
		at += uint64(copy(q.umem[at:end], q.umem[d.Addr:d.Addr+uint64(d.Len)]))
		q.recycle(uint32(d.Addr >> q.shift))
	}
	return true
}

// recycleAll recycles the buffers of a frame.
func (q *queue) recycleAll(first, pieces uint32) {
	for i := range pieces {
		q.recycle(uint32(q.rx.at(first+i).Addr >> q.shift))
	}
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
		bufs[i] = driver.Buf{}
		if qi == splitQueue {
			p.split.free = append(p.split.free, index)
			continue
		}
		if qi != last && last >= 0 {
			p.refilled(p.queues[last])
		}
		last = qi
		p.queues[qi].recycle(index)
	}
	if last >= 0 {
		p.refilled(p.queues[last])
	}
	p.out -= len(bufs)
	p.leave()
}

func (p *Port) refilled(q *queue) {
	q.topUp()
	if q.fill.needWakeup() {
		_ = kickRx(q.fd)
	}
}
