package roce

import (
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
)

// Done returns a channel that is closed when the Device stops working: when Close starts, or when
// the network interface is removed or the Port is closed, the node service of the Device ends, or
// registered memory cannot be accessed. Err says which. Calls that wait, such as CQ.Wait, Dial and
// Accept, then return the error of Err.
func (d *Device) Done() <-chan struct{} { return d.done }

// Err returns nil while the Device works. Afterwards it returns ErrClosed, or an error that wraps
// ErrGone and the Port's error, or ErrServiceEnded, or ErrMemoryFault. Such a Device must still be
// closed.
func (d *Device) Err() error {
	if err := d.failure.Load(); err != nil {
		return *err
	}
	if d.closing.Load() {
		return ErrClosed
	}
	return nil
}

// fail ends the device because its port does not work any more. It ends all connections and makes
// all calls that wait return. Owner only.
func (d *Device) fail(now qp.Time, cause error) {
	if d.closing.Load() {
		return
	}
	err := fmt.Errorf("%w: %w", ErrGone, cause)
	if errors.Is(cause, loop.ErrFault) {
		err = fmt.Errorf("%w: %w", ErrMemoryFault, cause)
	}
	if errors.Is(cause, driver.ErrServiceEnded) {
		err = fmt.Errorf("%w: %w", ErrServiceEnded, cause)
		d.endConns(now, err) // first, so that the failure of their QPs is not the reason
		d.eng.FlushAll(now)
		d.gsi.endFailed(now)
	}
	if !d.failure.CompareAndSwap(nil, &err) {
		return
	}
	d.stop()
	d.endConns(now, err)
	for _, id := range d.gsi.ids {
		id.signal()
	}
	for _, l := range d.gsi.listeners {
		l.signal()
	}
	d.emit(Event{Kind: EventDeviceFatal, Err: err})
}

// endConns ends all connections because of err. Owner only.
func (d *Device) endConns(now qp.Time, err error) {
	for _, id := range d.gsi.ids {
		if id.conn != nil {
			id.conn.ended(now, err)
		}
	}
}

// stop closes the channel of Done.
func (d *Device) stop() { d.doneOnce.Do(func() { close(d.done) }) }

// portsInUse holds the ports of all open devices.
var portsInUse sync.Map

// claim records that a device uses the port, or one that wraps it. It returns ErrPortInUse if there
// is another one. The caller calls release when the device is closed.
func claim(port driver.Port) (release func(), err error) {
	for {
		w, ok := port.(driver.Wrapper)
		if !ok || w.Unwrap() == nil {
			break
		}
		port = w.Unwrap()
	}
	if !reflect.TypeOf(port).Comparable() {
		return func() {}, nil
	}
	if _, used := portsInUse.LoadOrStore(port, struct{}{}); used {
		return nil, ErrPortInUse
	}
	return func() { portsInUse.Delete(port) }, nil
}

// checkPort returns an error if the port of a new device is closed or its interface is gone.
func checkPort(port driver.Port) error {
	err := port.Wait(0)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, driver.ErrGone):
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return fmt.Errorf("%w: the port: %w", ErrClosed, err)
}
