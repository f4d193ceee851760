package perftest

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Report is what an end of a bandwidth test tells the other about its run. The
// rates are in the unit that this end prints: MB of 2^20 bytes, or Gbit of 10^9
// bits, a second.
type Report struct {
	Bytes      uint64 // of a message
	Iterations uint64 // of all queue pairs together
	Peak       float64
	Average    float64
	MsgRate    float64 // millions a second
}

const (
	wordLen     = 8 // bytes
	reportWords = 5
)

// words are the report as it travels, a word an exchange.
func (r *Report) words() [reportWords]uint64 {
	return [...]uint64{r.Bytes, r.Iterations, math.Float64bits(r.Peak), math.Float64bits(r.Average), math.Float64bits(r.MsgRate)}
}

func (r *Report) read(w [reportWords]uint64) {
	r.Bytes, r.Iterations = w[0], w[1]
	r.Peak, r.Average, r.MsgRate = math.Float64frombits(w[2]), math.Float64frombits(w[3]), math.Float64frombits(w[4])
}

// Check refuses what no test can have measured. It is for those who use the
// numbers: perftest's servers answer with whatever is in their memory.
func (r *Report) Check() error {
	for _, f := range []float64{r.Peak, r.Average, r.MsgRate} {
		if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
			return fmt.Errorf("%w: a rate of %v in its report", ErrProtocol, f)
		}
	}
	if r.Bytes > math.MaxInt64 || r.Iterations > math.MaxInt64 {
		return fmt.Errorf("%w: %d messages of %d bytes in its report", ErrProtocol, r.Iterations, r.Bytes)
	}
	return nil
}

func word(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
