//go:build linux

package xdp

import (
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/udpmsg"
)

// LeastRun implements driver.RunSender. Runs go through sockets, like long runs of frames. If these
// refuse one, there must be a buffer for each of its packets.
func (p *Port) LeastRun() (n int) {
	if p.bulk.open && p.enter() {
		q := p.queues[0]
		if len(q.txFree) < maxRun {
			q.reap()
		}
		if !p.bulk.bounded && !p.down && q.tx.queued() == 0 && len(q.txFree) >= maxRun {
			n = bulkBytes
		}
		p.leave()
	}
	return n
}

// packetsIn returns the number of packets in buffers that are sent.
func packetsIn(bufs []driver.Buf) int {
	n := 0
	for i := range bufs {
		n += bufs[i].Packets()
	}
	return n
}

// sendRuns sends frames and runs. They go through sockets unless these do not reach the peer.
func (p *Port) sendRuns(q *queue, bufs []driver.Buf) {
	b := &p.bulk
	ring := false // the latest frame goes through the ring
	expanded := false
	for i := range bufs {
		f := bufs[i].B
		if bufs[i].Token&driver.NoHeaders != 0 {
			if ring {
				b.rest = p.expand(q, &bufs[i], 0, b.rest)
				expanded = true
				continue
			}
			b.sender.Join(f, bufs[i].Size)
		} else {
			n := headersOf(f)
			ring = n == 0 || n == udpmsg.LenV6 && b.v6.FD < 0 || b.sender.Pauses(f, n)
			if ring {
				b.head.setHeaders(f)
				b.rest = append(b.rest, bufs[i])
				continue
			}
			if !b.sender.Next(f) {
				b.sender.Add(b.socket(n), f, n)
			}
		}
		b.frames = append(b.frames, bufs[i])
	}
	if len(b.frames) > 0 {
		p.flushBulk(q)
	}
	if expanded { // frames are cheaper until the sockets take a run again
		b.open = false
	}
	if len(b.rest) > 0 {
		p.send(q, b.rest)
		b.rest = b.rest[:0]
	}
}

// flushBulk sends what was passed to the sender. Packets that the kernel refuses go through the
// ring.
func (p *Port) flushBulk(q *queue) {
	b := &p.bulk
	b.sender.Flush()
	before, after := b.counted, b.sender.Stats
	b.counted = after
	p.stats.TxBytes += after.TxBytes - before.TxBytes
	p.stats.TxDropped += after.TxDropped - before.TxDropped
	p.stats.Kicks += after.Kicks - before.Kicks
	p.stats.TxRuns = after.TxRuns
	unsent := b.sender.Unsent()
	if b.open = unsent == 0; b.open {
		for i := range b.frames {
			q.free(&b.frames[i])
		}
	} else {
		p.send(q, p.refused(q, packetsIn(b.frames)-unsent))
	}
	b.frames = b.frames[:0]
}

// refused returns the frames for the ring if only the first sent packets of bulk.frames were sent.
func (p *Port) refused(q *queue, sent int) (frames []driver.Buf) {
	b := &p.bulk
	for i := range b.frames {
		f := &b.frames[i]
		isRun := f.Token&driver.NoHeaders != 0
		if !isRun {
			b.head.setHeaders(f.B)
		}
		n := f.Packets()
		switch {
		case sent >= n:
			q.free(f)
		case isRun:
			frames = p.expand(q, f, max(sent, 0), frames)
		default:
			b.enc.Reseal(f.B, headersOf(f.B))
			frames = append(frames, *f)
		}
		sent -= n
	}
	return frames
}

// setHeaders makes r have the headers of a frame.
func (r *run) setHeaders(f []byte) {
	_, r.ip, r.udp = offsets(f)
	r.end = r.udp + udpLen
	copy(r.head[:r.end], f)
}

// expand makes frames of the packets of a run from number first on, with the headers in bulk.head,
// and appends them to frames. It drops those for which there is no buffer.
func (p *Port) expand(q *queue, b *driver.Buf, first int, frames []driver.Buf) []driver.Buf {
	run := *b
	q.free(b)
	h := &p.bulk.head
	size := p.net.state.Load().info.MaxFrame
	for i := first; i < run.Packets(); i++ {
		if len(q.txFree) == 0 {
			q.reap()
		}
		last := len(q.txFree) - 1
		if last < 0 || h.end+run.Size > size {
			p.stats.TxDropped++
			continue
		}
		index := q.txFree[last]
		q.txFree = q.txFree[:last]
		f := q.umem[uint64(index)<<q.shift:][:h.end+run.Size]
		h.put(f, run.Size, uint16(i))
		copy(f[h.end:], run.B[i*run.Size:])
		p.bulk.enc.Reseal(f, h.end)
		frames = append(frames, driver.Buf{B: f, Token: token(0, index)})
	}
	return frames
}
