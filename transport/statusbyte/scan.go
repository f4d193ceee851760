package statusbyte

import (
	"cmp"
	"slices"
)

// packet is a block that has data.
type packet struct {
	header
	seq  uint64
	slot int
}

// gather scans the array until ready contains all packets that are there, in order. The caller
// holds mu, and ready is empty.
//
// Blocks are found in the order of the array, not in the order of the WRITEs. A connection's WRITEs
// land in order: once a packet is visible, all packets sent before it are visible. So if numbers
// are missing, gather scans again. What is not found then was never sent. Each further scan finds
// at least one block or is the last.
func (r *Receiver) gather() {
	r.ready, r.from = r.ready[:0], 0
	for r.scan() {
		slices.SortFunc(r.ready, r.order)
		if !r.missing() {
			break
		}
	}
	r.settle()
}

// scan adds the blocks with data to ready and reports whether it found any.
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

// look takes block j if its status byte says that it has data and the program does not hold it.
func (r *Receiver) look(j int) bool {
	switch r.status.Load8(j) {
	case Empty:
		return false
	case HasData:
	default: // Unavailable is reserved for the receiver; other values are undefined
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
		r.ready = append(r.ready, packet{header: h, slot: j}) // at most Blocks entries
		return true
	}
	r.status.Store8(j, Empty)
	return false
}

// order compares packets by device and, within a device, by their distance from the next packet of
// its stream. A peer can write any numbers; their distances are ordered in any case.
func (r *Receiver) order(a, b packet) int {
	if c := cmp.Compare(a.device, b.device); c != 0 {
		return c
	}
	next := uint16(r.flows[a.device].next)
	return cmp.Or(cmp.Compare(after(a.packet, next), after(b.packet, next)),
		cmp.Compare(a.slot, b.slot))
}
