package streams

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// If a directory cannot be written, its packets stay parked in their receive blocks and are stored
// later, in order. When half of the blocks are in use for this, receiving stops for a short time,
// or without limit if Options.Lossless is set. After that packets are dropped and counted.

const (
	// retryInterval is the time between attempts to store parked packets.
	retryInterval = 100 * time.Millisecond
	// holdTime is how long receiving stops when all blocks for parked packets are in use: a
	// consumer may soon free space. It happens at most once in holdInterval.
	holdTime     = 500 * time.Millisecond
	holdInterval = 10 * time.Second
	holdPause    = 5 * time.Millisecond
	// logInterval is the shortest time between two messages of a kind about a directory.
	logInterval = 10 * time.Second
)

// packet is a packet that is not completely stored.
type packet struct {
	statusbyte.Block
	gap    bool // the store knows of the gap before it
	stored bool // the data is stored, but maybe not the end mark
}

// directory is the state of a device's directory.
type directory struct {
	next     uint64   // number of the next packet if none is missing
	parked   []packet // in order
	err      error    // of the last attempt to store
	failing  bool
	dropped  uint64       // packets since failing is set
	logged   [2]time.Time // last messages about parked and dropped packets
	reported bool         // a message about dropped packets was logged since failing is set
}

// put stores what is not stored yet of a packet, and releases its block.
func (d *Delivery) put(p *packet) error {
	dir := &d.dirs[p.Device]
	if !p.stored {
		if p.Seq != dir.next && !p.gap {
			d.store.Gap(p.Device)
			p.gap = true
		}
		if len(p.Data) > 0 {
			if err := d.store.Put(p.Device, p.Data); err != nil {
				return err
			}
		}
		p.stored, dir.next = true, p.Seq+1
	}
	if p.Last {
		if err := d.store.End(p.Device); err != nil {
			return err
		}
	}
	p.Release()
	return nil
}

// park keeps a packet in its block, which the sender skips, until its directory can be written. If
// there is no block for it, even after a hold, the packet is dropped.
func (d *Delivery) park(p packet, err error) {
	dir := &d.dirs[p.Device]
	if dir.err = err; !dir.failing {
		dir.failing = true
		others := "other devices continue"
		if d.Lossless {
			others = "all devices will wait when half of the blocks are in use (--lossless)"
		}
		d.logf(&dir.logged[0], "device %d: %v; its packets wait, %s", p.Device, err, others)
	}
	for d.parked >= d.maxParked {
		if !d.mayHold(time.Now()) {
			d.drop(p)
			return
		}
		d.timeout.reset()
		time.Sleep(holdPause)
		d.storeParked()
		if len(dir.parked) > 0 {
			continue
		}
		if dir.err = d.put(&p); dir.err == nil {
			d.recovered(p.Device)
			return
		}
	}
	p.Retain()
	if d.parked == 0 {
		d.retry = time.Now().Add(retryInterval)
	}
	d.parked++
	dir.parked = append(dir.parked, p)
}

// mayHold reports whether receiving may stop to wait for a directory.
func (d *Delivery) mayHold(now time.Time) bool {
	if d.ctx.Err() != nil {
		return false
	}
	if now.Sub(d.hold) > holdInterval {
		d.hold = now
	}
	return d.Lossless || now.Sub(d.hold) <= holdTime
}

// drop counts a packet that cannot be stored. The next packet in the store follows a gap.
func (d *Delivery) drop(p packet) {
	dir := &d.dirs[p.Device]
	if dir.dropped == 0 && d.ctx.Err() == nil {
		dir.reported = d.logf(&dir.logged[1],
			"device %d: %v; packets from number %d on are lost until the directory can be written",
			p.Device, dir.err, p.Seq)
	}
	dir.dropped++
	d.all.of(p.Device).Unstored++
	p.Release()
}

// recovered records that a directory can be written again and has no parked packets.
func (d *Delivery) recovered(device uint8) {
	dir := &d.dirs[device]
	if dir.reported {
		fmt.Fprintf(d.Log, "device %d: the directory can be written again; %d packets are missing.\n", device, dir.dropped)
	}
	dir.failing, dir.dropped, dir.reported = false, 0, false
}

// logf logs a message about a directory, and reports whether it did: not within logInterval of
// last.
func (d *Delivery) logf(last *time.Time, format string, args ...any) bool {
	now := time.Now()
	if now.Sub(*last) < logInterval {
		return false
	}
	*last = now
	fmt.Fprintf(d.Log, format+".\n", args...)
	return true
}

// retryParked stores parked packets if it is time.
func (d *Delivery) retryParked(now time.Time) {
	if d.parked == 0 || now.Before(d.retry) {
		return
	}
	d.retry = now.Add(retryInterval)
	d.storeParked()
}

// storeParked stores the parked packets of all directories that can be written.
func (d *Delivery) storeParked() {
	for device := range d.dirs {
		d.storeParkedOf(uint8(device))
	}
}

func (d *Delivery) storeParkedOf(device uint8) {
	dir := &d.dirs[device]
	if len(dir.parked) == 0 {
		return
	}
	for len(dir.parked) > 0 {
		if err := d.put(&dir.parked[0]); err != nil {
			dir.err = err
			return
		}
		dir.parked = dir.parked[1:]
		d.parked--
	}
	dir.parked = nil
	d.recovered(device)
}

// linger waits after the end of the streams for directories with parked packets.
func (d *Delivery) linger() {
	if d.parked == 0 || d.ctx.Err() != nil {
		return
	}
	end, until := time.Now().Add(d.Grace), fmt.Sprintf("for %v (--grace)", d.Grace)
	if d.Lossless {
		until = "until the directory can be written or recv is interrupted"
	}
	for device := range d.dirs {
		if dir := &d.dirs[device]; len(dir.parked) > 0 {
			fmt.Fprintf(d.Log, "device %d: %v; the streams have ended, %d packets wait %s.\n",
				device, dir.err, len(dir.parked), until)
		}
	}
	for d.parked > 0 && (d.Lossless || time.Now().Before(end)) &&
		sleepUntil(d.ctx, time.Now().Add(retryInterval)) == nil {
		d.storeParked()
	}
}

// finish waits for directories with parked packets as long as the options allow, and then counts
// and releases the packets that are left.
func (d *Delivery) finish() {
	d.linger()
	d.storeParked()
	for device := range d.dirs {
		dir := &d.dirs[device]
		for _, p := range dir.parked {
			d.all.of(p.Device).Unstored++
			p.Release()
		}
		if dir.dropped > 0 || len(dir.parked) > 0 {
			d.store.Gap(uint8(device)) // before the first packet of the next sender
		}
		d.parked -= len(dir.parked)
		dir.parked = nil
	}
	d.sync()
}

// sync waits for the disk, and counts the packets that did not reach it.
func (d *Delivery) sync() {
	if d.store == nil {
		return
	}
	if err := d.store.Sync(); err != nil {
		fmt.Fprintf(d.Log, "%v; the last files appear when that is possible.\n", err)
	}
	for device, before := range d.lost {
		if lost := d.store.Lost(uint8(device)); lost.Packets > before {
			d.all.of(uint8(device)).Unstored += lost.Packets - before
			d.dirs[device].err = lost.Err
			d.lost[device] = lost.Packets
		}
	}
}
