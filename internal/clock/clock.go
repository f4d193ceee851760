// Package clock reads the clock cheaply: a system's clock costs some 50 ns a look on virtual machines, the processor's counter a
// quarter of that, and a NIC in software looks at every turn.
package clock

// Clock gives the time of a system's clock, by the processor's counter for a short while after each look at that clock, of which it
// also learns how fast the counter runs. It never runs backwards. One goroutine at a time uses it.
type Clock struct {
	read  func() int64
	count func() uint64

	base int64  // what read gave last,
	at   uint64 // and the counter then
	span uint64 // for so many counts the counter is believed; 0: it is not
	rate uint64 // ns a count, times 2^32

	first   int64 // of the stretch by which the counter is measured
	firstAt uint64
	last    int64  // the latest result,
	seen    uint64 // and the counter then
	glance  uint64 // Fresh's time in counts; 0: the counter is not believed
	peek    uint64 // the counter when Fresh was asked
}

const (
	// trust is for how long the counter is believed, ns. What may go wrong with it (a virtual machine that moves, a processor
	// whose counter is apart from another's) makes the time wrong by not more than that.
	trust = 20_000
	// fresh is Fresh's bound, ns.
	fresh = 1000
	// The counter is measured over stretches of these lengths, ns, and is no good if two of them differ by more than
	// one part in maxDrift.
	shortest, longest = 1_000_000, 1_000_000_000
	maxDrift          = 64
	// A count takes more than a tenth of a nanosecond, and less than 100.
	minRate, maxRate = 1 << 32 / 10, 100 << 32
)

// New makes a Clock of read, which gives nanoseconds and never runs backwards.
func New(read func() int64) *Clock {
	c := &Clock{read: read}
	if steady() {
		c.count = counter
	}
	return c
}

// Now is the time in nanoseconds.
func (c *Clock) Now() int64 {
	if c.span != 0 {
		return c.by(c.count())
	}
	return c.look()
}

// by is the time when the counter was at k, if it is believed for so long.
func (c *Clock) by(k uint64) int64 {
	d := k - c.at
	if d >= c.span {
		return c.look()
	}
	c.seen = k
	c.last = max(c.last, c.base+int64(d*c.rate>>32))
	return c.last
}

// Fresh tells whether the latest result of Now is younger than a microsecond, as far as the counter knows; false if there is no
// counter to tell.
func (c *Clock) Fresh() bool {
	if c.glance == 0 {
		return false
	}
	c.peek = c.count()
	return c.peek-c.seen < c.glance
}

// Then is Now of when Fresh was asked, which said yes, or of a little later; it saves a look at the counter.
func (c *Clock) Then() int64 { return c.by(c.peek) }

// look reads the system's clock, and learns.
func (c *Clock) look() int64 {
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
		// The first look, the first after a long rest, or the counter went backwards.
		c.span, c.glance = 0, 0
		c.first, c.firstAt = c.base, c.at
	case took >= shortest:
		c.learn(uint64(took)<<32/counts, took >= longest)
	}
	return c.last
}

// learn takes in a measurement; after a whole stretch another one begins.
func (c *Clock) learn(rate uint64, whole bool) {
	good := rate >= minRate && rate <= maxRate
	if good && c.span != 0 {
		good = max(rate, c.rate)-min(rate, c.rate) <= c.rate/maxDrift
	}
	c.rate, c.span, c.glance = rate, 0, 0
	if good {
		c.span, c.glance = trust<<32/rate, fresh<<32/rate
	}
	if whole || !good {
		c.first, c.firstAt = c.base, c.at
	}
}
