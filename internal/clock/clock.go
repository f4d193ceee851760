package clock

// Clock returns the time of a system clock. Between readings of the system clock it extrapolates
// with the processor's counter, whose rate it measures. It never runs backwards. A Clock must not
// be used by two goroutines at a time.
type Clock struct {
	read  func() int64
	count func() uint64

	base int64  // last reading of the system clock, ns
	at   uint64 // counter at that reading
	span uint64 // counts for which the counter is trusted; 0 = not at all
	rate uint64 // ns per count, times 2^32

	first     int64 // start of the current measurement of the rate
	firstAt   uint64
	last      int64  // latest result, ns
	seen      uint64 // counter at the latest result
	freshSpan uint64 // counts for which Fresh returns true; 0 = never
	asked     uint64 // counter at the latest call of Fresh
}

const (
	// trust is the time in ns for which the counter is trusted after a reading of the system clock.
	// It bounds the error if the counter jumps, for example when a virtual machine migrates.
	trust = 20_000
	// fresh is the time limit of Fresh, ns.
	fresh = 1000
	// A measurement of the rate lasts between shortest and longest, ns. The counter is not trusted
	// if two measurements differ by more than one part in maxDrift.
	shortest, longest = 1_000_000, 1_000_000_000
	maxDrift          = 64
	// Valid rates: a count takes between 0.1 and 100 ns.
	minRate, maxRate = 1 << 32 / 10, 100 << 32
)

// New returns a Clock based on read, which returns nanoseconds and never runs backwards.
func New(read func() int64) *Clock {
	c := &Clock{read: read}
	if steady() {
		c.count = counter
	}
	return c
}

// NewPlain returns a Clock that calls read each time and never uses the counter. Fresh returns
// false.
func NewPlain(read func() int64) *Clock { return &Clock{read: read} }

// Now returns the time in nanoseconds.
func (c *Clock) Now() int64 {
	if c.span != 0 {
		return c.timeAt(c.count())
	}
	return c.readSystem()
}

// timeAt returns the time at counter value k, or the current time if the counter is not trusted for
// that long.
func (c *Clock) timeAt(k uint64) int64 {
	d := k - c.at
	if d >= c.span {
		return c.readSystem()
	}
	c.seen = k
	c.last = max(c.last, c.base+int64(d*c.rate>>32))
	return c.last
}

// Fresh reports whether the latest result of Now is less than a microsecond old. It returns false
// if the counter is not trusted.
func (c *Clock) Fresh() bool {
	if c.freshSpan == 0 {
		return false
	}
	c.asked = c.count()
	return c.asked-c.seen < c.freshSpan
}

// Then returns the time of the latest call of Fresh, which must have returned true, or a slightly
// later time. It saves reading the counter again.
func (c *Clock) Then() int64 { return c.timeAt(c.asked) }

// readSystem reads the system clock and updates the measurement of the rate.
func (c *Clock) readSystem() int64 {
	c.base = c.read()
	c.last = max(c.last, c.base)
	if c.count == nil {
		return c.last
	}
	c.at = c.count()
	c.seen = c.at
	took, counts := c.base-c.first, c.at-c.firstAt
	switch {
	case c.firstAt == 0 || took > 2*longest || c.at <= c.firstAt:
		// This is the first reading, the first after a long pause, or the counter ran backwards.
		c.span, c.freshSpan = 0, 0
		c.first, c.firstAt = c.base, c.at
	case took >= shortest:
		c.calibrate(uint64(took)<<32/counts, took >= longest)
	}
	return c.last
}

// calibrate applies a measured rate. If last is true, a new measurement begins.
func (c *Clock) calibrate(rate uint64, last bool) {
	good := rate >= minRate && rate <= maxRate
	if good && c.span != 0 {
		good = max(rate, c.rate)-min(rate, c.rate) <= c.rate/maxDrift
	}
	c.rate, c.span, c.freshSpan = rate, 0, 0
	if good {
		c.span, c.freshSpan = trust<<32/rate, fresh<<32/rate
	}
	if last || !good {
		c.first, c.firstAt = c.base, c.at
	}
}
