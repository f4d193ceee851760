package statusbyte

// packet is a block that was found to have data.
type packet struct {
	header
	seq  uint64
	slot int
}

// gather looks at the array until all packets that are there are in ready, ordered and without what must not be
// handed over. The caller holds mu; ready is used up.
//
// Blocks are found in the order of the array, not in that in which they were written. But a connection's WRITEs land in
// order: once a packet is seen, all that were sent before it can be seen. So where numbers are missing, the array is looked
// at once more; what is not found then was never sent. Each further look finds at least one block, or is the last.
func (r *Receiver) gather() {
	r.ready, r.from = r.ready[:0], 0
	for r.scan() && r.missing() {
	}
	r.settle()
}

// scan adds the blocks with data to ready, and tells whether it found any.
func (r *Receiver) scan() (found bool) {
	for at := 0; at < len(r.slots); at += wordLen {
		if r.status.Load64(at) == 0 {
			continue // eight empty blocks
		}
		for j := at; j < min(at+wordLen, len(r.slots)); j++ {
			if r.slots[j] == slotIdle && r.look(j) {
				found = true
			}
		}
	}
	return found
}

// look takes a block that the program does not have, if its status byte says that it has data.
func (r *Receiver) look(j int) bool {
	switch r.status.Load8(j) {
	case Empty:
		return false
	case HasData:
	default: // Unavailable is the receiver's own word, the others are nobody's
		r.stats.BadStatus++
		r.status.Store8(j, Empty)
		return false
	}
	at := j * stride(r.cfg.BlockSize)
	h := parse(r.data.Bytes()[at : at+HeaderLen])
	switch {
	case int64(h.length) > int64(r.cfg.BlockSize):
		r.stats.BadHeader++
	case !r.taken[h.device]:
		r.stats.Unknown++
	default:
		r.slots[j] = slotFound
		r.insert(packet{header: h, slot: j})
		return true
	}
	r.status.Store8(j, Empty)
	return false
}

// insert keeps ready ordered by device and packet number. There are never more than Blocks.
func (r *Receiver) insert(p packet) {
	r.ready = append(r.ready, p)
	for i := len(r.ready) - 1; i > 0 && before(&p, &r.ready[i-1]); i-- {
		r.ready[i], r.ready[i-1] = r.ready[i-1], r.ready[i]
	}
}

func before(a, b *packet) bool {
	if a.device != b.device {
		return a.device < b.device
	}
	return after(a.packet, b.packet) < 0
}
