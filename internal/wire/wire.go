// Package wire computes when the output of a link has sent its frames. It sends one frame after the
// other with a constant rate.
package wire

import (
	"math"
	"math/bits"
	"time"
)

// Output is the output of a link. Times are in nanoseconds of any clock.
type Output struct {
	Rate int64 // bits per second
	Busy int64 // when everything has been sent
}

// bitTime is the duration of a byte at one bit per second, ns: n bytes take n*bitTime/Rate.
const bitTime = 8 * int64(time.Second)

// Send adds n bytes at time now and returns when the last bit has been sent.
func (o *Output) Send(now int64, n int) int64 {
	o.Busy = max(o.Busy, now) + o.Duration(n)
	return o.Busy
}

// Duration returns how long n bytes take, ns, rounded down.
func (o *Output) Duration(n int) int64 { return int64(n) * bitTime / o.Rate }

// Backlog returns the number of bytes that have not been sent at time now, rounded up. It is 0 if
// Rate is 0.
func (o *Output) Backlog(now int64) int {
	left := o.Busy - now
	if left <= 0 {
		return 0
	}
	hi, lo := bits.Mul64(uint64(left), uint64(o.Rate))
	if hi >= uint64(bitTime) {
		return math.MaxInt
	}
	n, rest := bits.Div64(hi, lo, uint64(bitTime))
	if rest > 0 {
		n++
	}
	return int(n)
}

// DrainTime returns how long it takes to send n bytes at a rate in bits per second, ns, rounded up.
func DrainTime(n int, rate int64) int64 { return (int64(n)*bitTime + rate - 1) / rate }
