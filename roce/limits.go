package roce

import (
	"cmp"
	"fmt"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// Limits limit what a program may use of a Device: see WithLimits. A field that is 0 means no
// limit.
type Limits struct {
	QPs int // queue pairs
	MRs int // memory regions, windows and fast regions together
	// Memory limits the bytes of registered memory, queues and queue pairs together.
	Memory uint64
	// Rate limits what the Device sends, in bytes of frames per second from the Ethernet header to
	// the ICRC, MinRate to MaxRate.
	Rate uint64
}

// WithLimits limits the objects, memory and rate of the Device. Calls that exceed a limit return
// ErrTooManyQPs, ErrTooMany or ErrNoMemory. The Device paces what it sends, except messages of the
// connection manager. Limits only lower those of Expert. If the Device joins a node service that
// limits its programs, the lower value of each limit counts.
func WithLimits(l Limits) Option { return func(c *config) { c.limits = lowest(c.limits, l) } }

// Limits returns the limits of the Device: those of WithLimits and of the node service that it has
// joined, and for QPs and MRs also those of Expert.
func (d *Device) Limits() Limits { return d.limits }

// applyLimits takes over the limits of the port, and lowers those of Expert.
func (c *config) applyLimits(port driver.Port) error {
	l := &c.limits
	if p, ok := driver.Find[driver.Limited](port); ok {
		*l = lowest(*l, Limits(p.Limits()))
	}
	if l.QPs < 0 || l.MRs < 0 {
		return fmt.Errorf("%w: limits of %d queue pairs and %d memory regions", ErrInvalid, l.QPs,
			l.MRs)
	}
	l.QPs = lower(l.QPs, cmp.Or(c.maxQP, qp.DefaultMaxQP))
	l.MRs = lower(l.MRs, cmp.Or(c.maxMR, mr.DefaultMaxMR))
	c.maxQP, c.maxMR = l.QPs, l.MRs
	if l.Memory > 0 {
		l.Memory = lower(l.Memory, c.maxMemory)
	}
	return nil
}

// lowest returns the lower value of each limit.
func lowest(a, b Limits) Limits {
	return Limits{QPs: lower(a.QPs, b.QPs), MRs: lower(a.MRs, b.MRs),
		Memory: lower(a.Memory, b.Memory), Rate: lower(a.Rate, b.Rate)}
}

func lower[T int | uint64](a, b T) T {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// charge counts n bytes of memory that the Device does not allocate, such as registered memory, if
// the memory of the Device is limited.
func (d *Device) charge(n int, what string) error {
	if d.limits.Memory == 0 {
		return nil
	}
	return d.mem.count(n, what)
}

// discharge ends that.
func (d *Device) discharge(n int) {
	if d.limits.Memory != 0 {
		d.mem.give(n)
	}
}
