package perftest

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Report is what one side of a bandwidth test sends to the other about its run. The bandwidths are
// in the unit that the side prints: MB (2^20 bytes) or Gbit (10^9 bits) per second.
type Report struct {
	Bytes      uint64 // per message
	Iterations uint64 // total of all queue pairs
	Peak       float64
	Average    float64
	MsgRate    float64 // millions of messages per second
}

const (
	valueLen     = 8 // bytes
	reportValues = 5
)

// values returns the values of the report in the order in which they are sent.
func (r *Report) values() [reportValues]uint64 {
	return [...]uint64{r.Bytes, r.Iterations, math.Float64bits(r.Peak), math.Float64bits(r.Average),
		math.Float64bits(r.MsgRate)}
}

// read sets the report from the values of a received report.
func (r *Report) read(w [reportValues]uint64) {
	r.Bytes, r.Iterations = w[0], w[1]
	r.Peak, r.Average, r.MsgRate = math.Float64frombits(w[2]), math.Float64frombits(w[3]), math.Float64frombits(w[4])
}

// Check returns an error if r has values that no test can measure. Call it before using a received
// report: perftest's servers may send uninitialized memory.
func (r *Report) Check() error {
	for _, f := range []float64{r.Peak, r.Average, r.MsgRate} {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%w: rate %v in its report", ErrProtocol, f)
		}
	}
	if r.Bytes > math.MaxInt64 || r.Iterations > math.MaxInt64 {
		return fmt.Errorf("%w: %d messages of %d bytes in its report", ErrProtocol, r.Iterations,
			r.Bytes)
	}
	return nil
}

func encodeValue(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
