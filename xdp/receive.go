package xdp

import (
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/prefetch"
	"golang.org/x/sys/unix"
)

// headLines is how many cache lines of a frame are fetched as soon as it is known where it is: all headers, and a short
// message. They come from the core that the kernel received on, which takes some 70 ns.
const headLines = 2

// Tokens name the queue in the upper half and the buffer's index in the lower.
func token(q int, index uint32) uint64           { return uint64(q)<<32 | uint64(index) }
func untoken(t uint64) (queue int, index uint32) { return int(t >> 32), uint32(t) }

// Receive takes up to len(bufs) frames out of the receive rings without a
// system call (but see Options.BusyPoll), from the queues in turn. Frames of several
// descriptors come out contiguous.
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
	pile := ready
	n, used := 0, uint32(0)
	bytes := 0
	for n < len(bufs) && used < ready {
		d := q.rx.at(used)
		at, size, pieces := d.Addr, int(d.Len), uint32(1)
		if d.Options&unix.XDP_PKT_CONTD != 0 {
			size, pieces = p.join(q, used, &ready)
			if pieces == 0 {
				break // the rest of the frame is not there yet
			}
		}
		used += pieces
		index := uint32(at >> q.shift)
		if size == 0 {
			q.giveBack(index)
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
		q.taken(used, pile)
		if used > uint32(n) {
			q.topUp() // join or a dropped frame gave buffers back
		}
	}
	p.stats.RxFrames += uint64(n)
	p.stats.RxBytes += uint64(bytes)
	return n
}

// join makes a frame of several descriptors contiguous, the first being number
// "first" of those ready. It appends the later pieces behind the head, where the buffer's second chunk is,
// which the kernel never uses: it fills a chunk to its end before it takes
// the next, so in copy mode the head ends right there, and the short rest is all that is copied.
// A driver that ends the head earlier is served as well. It returns the frame's size, 0 if the frame
// is too long for a buffer and has to be dropped, and the number of descriptors,
// 0 if the last is not there yet.
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
		q.giveBack(uint32(d.Addr >> q.shift))
	}
	return size, pieces
}

// pokeIdle is for a queue that has nothing: with busy-polling the caller's system call is what
// makes the NIC's queue run, and a zero-copy driver that ran out of buffers asks to be called once it has
// new ones.
func (p *Port) pokeIdle(q *queue) {
	if p.busyPoll || (q.zeroCopy && q.fill.needWakeup()) {
		_ = kickRx(q.fd)
	}
}

// Release gives received frames back; the kernel may receive into them at once.
func (p *Port) Release(bufs []driver.Buf) {
	if len(bufs) == 0 {
		return
	}
	if !p.enter() {
		p.lentBack(len(bufs))
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
		q.giveBack(index)
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
