package statusbyte

import (
	"time"

	"github.com/gorxe/gorxe/transport/statusbyte"
)

// park keeps a packet in its block, which the sender goes round, until its directory takes packets again. There is
// only so much room, so that the other devices' streams go on; what finds none is counted and let go.
func (d *delivery) park(b statusbyte.Block) {
	if d.nparked >= d.most {
		d.all.of(b.Device).Lost++
		b.Release()
		return
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
		list = list[1:]
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
