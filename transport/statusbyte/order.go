package statusbyte

// flow is the state of a device's received stream.
type flow struct {
	next  uint64 // the next packet; its low 16 bits are its number
	stats DeviceStats
}

// missing reports whether there are gaps in the numbers of the packets found.
func (r *Receiver) missing() bool {
	var next uint64
	for i := range r.ready {
		p := &r.ready[i]
		if i == 0 || p.device != r.ready[i-1].device {
			next = r.flows[p.device].next
		}
		ahead := after(p.packet, uint16(next))
		if ahead > 0 {
			return true
		}
		if ahead == 0 {
			next++
		}
	}
	return false
}

// settle counts gaps, discards duplicates and numbers the packets in ready. A jump by more than
// half the range of numbers looks like a step back; such packets count as duplicates.
func (r *Receiver) settle() {
	kept := r.ready[:0]
	for _, p := range r.ready {
		f := &r.flows[p.device]
		ahead := after(p.packet, uint16(f.next))
		if ahead < 0 {
			f.stats.Duplicates++
			r.slots[p.slot] = slotIdle
			r.status.Store8(p.slot, Empty)
			continue
		}
		f.stats.Gaps += uint64(ahead)
		p.seq = f.next + uint64(ahead)
		f.next = p.seq + 1
		kept = append(kept, p)
	}
	r.ready = kept
}
