package statusbyte

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// What becomes of a packet that its directory does not take. A packet is accepted when it is stored or parked; what is
// accepted is stored, in order, as soon as the directory takes it, and given up only when the user interrupts or, after the stream's
// end, does so by --grace.

const (
	// retryEvery is how long a directory that took nothing is left alone.
	retryEvery = 100 * time.Millisecond
	// holdFor is how long everything waits, once all room is taken, for a directory that takes nothing: a consumer may be about to make
	// room. It does so once in holdEvery, whatever directories do.
	holdFor   = 500 * time.Millisecond
	holdEvery = 10 * time.Second
	holdPause = 5 * time.Millisecond
	// sayEvery bounds what is said of a directory that takes now this, now that.
	sayEvery = 10 * time.Second
)

// item is a packet on its way into its directory.
type item struct {
	statusbyte.Block
	gap    bool // before it was noted
	stored bool // its data are; the end of the stream may still have to be marked
}

// shelf is what delivery knows of a device's directory.
type shelf struct {
	next    uint64 // number of the packet that comes next, if none is missing
	parked  []item // packets that it did not take, in order
	why     error  // what it said last
	stuck   bool
	dropped uint64       // packets since it is stuck
	said    [2]time.Time // when the user was told last that packets wait, that they are lost
	told    bool         // that packets are lost
}

// put stores a packet, as far as it has not been stored yet, and gives its block back.
func (d *delivery) put(it *item) error {
	s := &d.shelves[it.Device]
	if !it.stored {
		if it.Seq != s.next && !it.gap {
			d.store.Gap(it.Device)
			it.gap = true
		}
		if len(it.Data) > 0 {
			if err := d.store.Put(it.Device, it.Data); err != nil {
				return err
			}
		}
		it.stored, s.next = true, it.Seq+1
	}
	if it.Last {
		if err := d.store.End(it.Device); err != nil {
			return err
		}
	}
	it.Release()
	return nil
}

// park keeps a packet in its block, which the sender goes round, until its directory takes packets again. There is
// only so much room, so that the other devices' streams go on; what finds none, even after a short while, is counted and let go.
func (d *delivery) park(it item, why error) {
	s := &d.shelves[it.Device]
	if s.why = why; !s.stuck {
		s.stuck = true
		others := "the other devices go on"
		if d.lossless {
			others = "and with them, when half of the blocks are used up, all devices (--lossless)"
		}
		d.say(&s.said[0], "device %d: %v; its packets wait, %s", it.Device, why, others)
	}
	for d.nparked >= d.most {
		if !d.mayHold(time.Now()) {
			d.drop(it)
			return
		}
		d.wait.renew()
		time.Sleep(holdPause)
		d.unparkAll()
		if len(s.parked) > 0 {
			continue
		}
		if s.why = d.put(&it); s.why == nil {
			d.recovered(it.Device)
			return
		}
	}
	it.Retain()
	if d.nparked == 0 {
		d.retry = time.Now().Add(retryEvery)
	}
	d.nparked++
	s.parked = append(s.parked, it)
}

// mayHold tells whether everything may wait for a directory.
func (d *delivery) mayHold(now time.Time) bool {
	if d.ctx.Err() != nil {
		return false
	}
	if now.Sub(d.hold) > holdEvery {
		d.hold = now
	}
	return d.lossless || now.Sub(d.hold) <= holdFor
}

// drop counts a packet that arrived and cannot be stored. The next one that can follows a gap.
func (d *delivery) drop(it item) {
	s := &d.shelves[it.Device]
	if s.dropped == 0 && d.ctx.Err() == nil {
		s.told = d.say(&s.said[1], "device %d: %v; from packet %d on its packets are lost until the directory takes them again", it.Device, s.why, it.Seq)
	}
	s.dropped++
	d.all.of(it.Device).Lost++
	it.Release()
}

// recovered notes that a device's directory takes packets again, and has them all.
func (d *delivery) recovered(device uint8) {
	s := &d.shelves[device]
	if s.told {
		fmt.Fprintf(d.diag, "device %d: stored again; %d packets are missing.\n", device, s.dropped)
	}
	s.stuck, s.dropped, s.told = false, 0, false
}

// say tells the user about a directory, unless that was done lately, and whether it did.
func (d *delivery) say(last *time.Time, format string, args ...any) bool {
	now := time.Now()
	if now.Sub(*last) < sayEvery {
		return false
	}
	*last = now
	fmt.Fprintf(d.diag, format+".\n", args...)
	return true
}

// again tries to store what is parked, now and then.
func (d *delivery) again(now time.Time) {
	if d.nparked == 0 || now.Before(d.retry) {
		return
	}
	d.retry = now.Add(retryEvery)
	d.unparkAll()
}

func (d *delivery) unparkAll() {
	for device := range d.shelves {
		d.unpark(uint8(device))
	}
}

// unpark stores a device's parked packets, in order, until one is refused.
func (d *delivery) unpark(device uint8) {
	s := &d.shelves[device]
	if len(s.parked) == 0 {
		return
	}
	for len(s.parked) > 0 {
		if err := d.put(&s.parked[0]); err != nil {
			s.why = err
			return
		}
		s.parked = s.parked[1:]
		d.nparked--
	}
	s.parked = nil
	d.recovered(device)
}

// linger waits, after the end of all streams, for the directories that have not taken everything.
func (d *delivery) linger() {
	if d.nparked == 0 || d.ctx.Err() != nil {
		return
	}
	end, until := time.Now().Add(d.grace), fmt.Sprintf("for %v (--grace)", d.grace)
	if d.lossless {
		until = "until it takes them or recv is interrupted"
	}
	for device := range d.shelves {
		if s := &d.shelves[device]; len(s.parked) > 0 {
			fmt.Fprintf(d.diag, "device %d: %v; no more packets come, %d wait %s.\n", device, s.why, len(s.parked), until)
		}
	}
	for d.nparked > 0 && (d.lossless || time.Now().Before(end)) && sleepUntil(d.ctx, time.Now().Add(retryEvery)) == nil {
		d.unparkAll()
	}
}

// giveUp waits for what is parked as long as the user allows, tries one last time, and counts what is left.
func (d *delivery) giveUp() {
	d.linger()
	d.unparkAll()
	for device := range d.shelves {
		s := &d.shelves[device]
		for _, it := range s.parked {
			d.all.of(it.Device).Lost++
			it.Release()
		}
		if s.dropped > 0 || len(s.parked) > 0 {
			d.store.Gap(uint8(device)) // before the next sender's
		}
		d.nparked -= len(s.parked)
		s.parked = nil
	}
}
