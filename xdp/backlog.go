//go:build linux

package xdp

// backlog is the number of bytes in the descriptors from index from up to index to of the transmit
// ring: those that were not completed when backlog was computed last. The kernel does not change
// the descriptors, and they stay in the ring until they are overwritten, so the port needs no other
// record of the lengths of frames.
type backlog struct {
	from, to uint32
	bytes    int
}

// Backlog implements driver.Backlogger: it counts the bytes of frames that were passed to Send and
// that the kernel has not completed. The rate is not known. See the package comment for what
// completion means in each mode.
func (p *Port) Backlog() (bytes int, rate int64) {
	if !p.enter() {
		return 0, 0
	}
	p.bulk.bounded = true
	q := p.queues[0]
	if !q.zeroCopy && !p.down && q.tx.queued() > 0 {
		p.kick(q) // the kernel could not take all frames in an earlier call
	}
	if !p.down { // otherwise frames are dropped and do not wait for others
		bytes = q.outstanding()
	}
	p.leave()
	return bytes, 0
}

// outstanding returns the number of bytes that the kernel has not completed. Every descriptor is
// completed once. The calculation assumes that this happens in order, which is wrong by a few
// descriptors if the NIC sends on several rings.
func (q *queue) outstanding() int {
	b, tx := &q.backlog, &q.tx
	done := q.comp.producer.Load()
	if tx.own-done > uint32(len(q.comp.slots)) { // the kernel has miscounted
		return 0
	}
	if tx.own-b.from > uint32(len(tx.slots)) { // descriptors were overwritten
		*b = backlog{from: done, to: done}
	}
	for ; b.to != tx.own; b.to++ {
		b.bytes += int(tx.slots[b.to&tx.mask].Len)
	}
	for ; b.from != done; b.from++ {
		b.bytes -= int(tx.slots[b.from&tx.mask].Len)
	}
	return b.bytes
}
