package statusbyte

import (
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// holdFor is how long everything waits for a directory that has just begun to take nothing: a consumer may be about to make room.
const (
	holdFor   = 500 * time.Millisecond
	holdPause = 5 * time.Millisecond
)

// park keeps a packet in its block, which the sender goes round, until its directory takes packets again. There is
// only so much room, so that the other devices' streams go on; what finds none, even after a short while, is counted and let go.
func (d *delivery) park(b statusbyte.Block) {
	if d.since[b.Device].IsZero() {
		d.since[b.Device] = time.Now()
	}
	for d.nparked >= d.most {
		if time.Since(d.since[b.Device]) > holdFor {
			d.all.of(b.Device).Lost++
			b.Release()
			return
		}
		time.Sleep(holdPause)
		for device := range d.parked {
			d.unpark(uint8(device))
		}
		if len(d.parked[b.Device]) == 0 && d.put(b) == nil {
			d.since[b.Device] = time.Time{}
			return
		}
	}
	b.Retain()
	if d.nparked == 0 {
		d.retry = time.Now().Add(retryEvery)
	}
	d.nparked++
	d.parked[b.Device] = append(d.parked[b.Device], b)
}

// again tries to store what is parked, now and then.
func (d *delivery) again(now time.Time) {
	if d.nparked == 0 || now.Before(d.retry) {
		return
	}
	d.retry = now.Add(retryEvery)
	for device := range d.parked {
		d.unpark(uint8(device))
	}
}

// unpark stores a device's parked packets, in order, until one is refused.
func (d *delivery) unpark(device uint8) {
	list := d.parked[device]
	for len(list) > 0 {
		if err := d.put(list[0]); err != nil {
			d.why[device] = err
			break
		}
		if list = list[1:]; len(list) == 0 {
			d.since[device] = time.Time{}
		}
		d.nparked--
	}
	d.parked[device] = list
}

// giveUp tries one last time, and counts what is left.
func (d *delivery) giveUp() {
	for device := range d.parked {
		d.unpark(uint8(device))
		for _, b := range d.parked[device] {
			d.all.of(b.Device).Lost++
			b.Release()
		}
		d.parked[device], d.nparked = nil, d.nparked-len(d.parked[device])
	}
}
