package roce

import (
	"context"
	"time"
)

// Virtual reports whether the Device runs in virtual time (Expert.Clock). Then only Await and the
// blocking calls of this package let time pass. A goroutine that blocks on a channel or a lock that
// another one is to release stops it.
func (d *Device) Virtual() bool { return d.virtual }

// Await blocks until ready returns true, for packages that build blocking calls on this one. In
// virtual time other processes run meanwhile (Expert.Wait). Otherwise Await calls ready again and
// again, at intervals of up to 1 ms; with Manual progress it runs the protocol meanwhile. ready
// must be quick, and must not call methods that block.
//
// Errors: ctx's error, ErrVirtualTime, that of Device.Err.
func (d *Device) Await(ctx context.Context, ready func() bool) error {
	const shortest, longest = 10 * time.Microsecond, time.Millisecond
	for pause := shortest; !ready(); {
		if err := d.Err(); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if d.virtual {
			if err := d.waitVirtual(ctx, ready); err != nil {
				return err
			}
			continue
		}
		if d.manual && d.loop.TryStep() > 0 {
			pause = shortest
			continue
		}
		time.Sleep(pause)
		pause = min(2*pause, longest)
	}
	return nil
}
