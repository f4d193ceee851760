package qp

// bucket is a token bucket in the form of a virtual schedule: at is when it is full again. Its
// arithmetic is exact, so that long runs have the configured rate.
type bucket struct {
	rate  uint64 // bytes per second; 0: no limit
	burst int    // bytes; 0: what the rate gives in defaultBurst
	at    Time
	rem   uint64 // fraction of at, in 1/rate ns
}

// defaultBurst is the time whose bytes are the burst if none is set, in ns. It covers the time for
// which an owner that has nothing to send may sleep.
const defaultBurst Time = 1_000_000

// set changes the limits. The bucket is full afterwards.
func (b *bucket) set(rate uint64, burst int) { *b = bucket{rate: rate, burst: burst} }

// size returns the burst in bytes if packets have up to need bytes.
func (b *bucket) size(need int) int {
	n := b.burst
	if n == 0 {
		n = int(b.rate * uint64(defaultBurst) / uint64(nsPerSecond))
	}
	return max(n, need)
}

const nsPerSecond Time = 1_000_000_000

// fill returns the time in which the bucket gets n bytes.
func (b *bucket) fill(n int) Time {
	return Time(uint64(n) * uint64(nsPerSecond) / b.rate)
}

// readyAt returns when the bucket holds need bytes; now if it does already.
func (b *bucket) readyAt(now Time, need int) Time {
	return max(b.at-b.fill(b.size(need)-need), now)
}

// take removes n bytes. What is sent without waiting for tokens makes the bucket negative, down to
// another burst.
func (b *bucket) take(now Time, n, need int) {
	if b.at < now {
		b.at, b.rem = now, 0
	}
	x := uint64(n)*uint64(nsPerSecond) + b.rem
	b.at += Time(x / b.rate)
	b.rem = x % b.rate
	if limit := now + 2*b.fill(b.size(need)); b.at > limit {
		b.at, b.rem = limit, 0
	}
}
