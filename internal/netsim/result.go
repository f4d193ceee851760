package netsim

import (
	"math"
	"time"

	"github.com/gorxe/gorxe/loopback"
)

// Result is the result of a Scenario.
type Result struct {
	Flows      []Flow                   // by sender and QP
	Bits       float64                  // sum of the flows, bits per second
	Bottleneck loopback.BottleneckStats // of the whole time

	// Counters of the senders' devices in the whole time.
	Packets     uint64 // request packets and acknowledgments sent
	Retransmits uint64 // packets sent again
	Timeouts    uint64 // Local ACK Timeouts
	Probes      uint64 // packets sent again to get an acknowledgment

	Samples []Sample // by time, from the start of the warm-up
}

// Flow is the result of a QP.
type Flow struct {
	Sender int
	Bits   float64 // payload of completed operations per second of virtual time
}

// Sample is what happened in an interval.
type Sample struct {
	At      time.Duration // end of the interval, since the start
	Bits    []float64     // payload per second, by flow
	Windows []float64     // packets that may be in flight at the end, by flow
	Queue   int           // bytes in the Bottleneck at the end
}

// Jain returns Jain's fairness index of the flows: 1 if all have the same rate, 1/n if one of n has
// everything.
func (r *Result) Jain() float64 {
	sum, squares := 0.0, 0.0
	for _, f := range r.Flows {
		sum += f.Bits
		squares += f.Bits * f.Bits
	}
	if squares == 0 {
		return 0
	}
	return sum * sum / (float64(len(r.Flows)) * squares)
}

// Least returns the rate of the slowest flow as a share of the mean.
func (r *Result) Least() float64 {
	least := math.Inf(1)
	for _, f := range r.Flows {
		least = min(least, f.Bits)
	}
	if r.Bits == 0 {
		return 0
	}
	return least * float64(len(r.Flows)) / r.Bits
}

// Share returns the part of the flows' sum that the flows of a sender have.
func (r *Result) Share(sender int) float64 {
	bits := 0.0
	for _, f := range r.Flows {
		if f.Sender == sender {
			bits += f.Bits
		}
	}
	if r.Bits == 0 {
		return 0
	}
	return bits / r.Bits
}
