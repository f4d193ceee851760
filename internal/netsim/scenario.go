package netsim

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// ErrScenario means that a Scenario has a value out of range.
var ErrScenario = errors.New("netsim: invalid scenario")

// Sender is a host that sends to the receiver for the whole time. It has one device and one or more
// QPs, each of which always has Depth operations outstanding. With TCP it has one TCP flow instead,
// and Op, QPs, Size and Depth are not used.
type Sender struct {
	TCP   *TCP
	Op    roce.Op       // OpWrite, OpSend, or OpRead, in which the data flows to the Sender
	QPs   int           // 0 means 1
	Size  int           // bytes of each operation
	Depth int           // outstanding operations of each QP
	Plan  loopback.Plan // the link to the switch: bandwidth, delay and faults in each direction
	Start time.Duration // when it begins to send
}

// Scenario is a network of senders and one receiver.
type Scenario struct {
	Seed    uint64
	Senders []Sender // 1 to loopback.MaxPorts-1
	// Bottleneck is the switch's output to the receiver; nil means unlimited. It does not affect
	// the opposite direction.
	Bottleneck *loopback.Bottleneck
	// Frames limits the frames in flight between each sender and the receiver, in each direction,
	// including those that wait for the link. 0 means DefaultFrames. Further frames are lost.
	Frames int

	Warmup time.Duration // is not measured
	Time   time.Duration // is measured
	Sample time.Duration // interval of Result.Samples; 0 means no samples

	Options []roce.Option       // of all devices
	Connect roce.ConnectOptions // of all QPs
}

// DefaultFrames is the default of Scenario.Frames.
const DefaultFrames = 1 << 12

// maxMemory limits the memory of one Sender on each side, bytes.
const maxMemory = 1 << 30

// check returns an error if a value is out of range. The link checks the others.
func (s *Scenario) check() error {
	switch {
	case len(s.Senders) == 0 || len(s.Senders) >= loopback.MaxPorts:
		return fmt.Errorf("%w: %d senders, want 1 to %d", ErrScenario, len(s.Senders),
			loopback.MaxPorts-1)
	case s.Warmup < 0 || s.Time <= 0 || s.Sample < 0:
		return fmt.Errorf("%w: Warmup, Time and Sample are %v, %v and %v, want no negative times "+
			"and a Time", ErrScenario, s.Warmup, s.Time, s.Sample)
	}
	for i := range s.Senders {
		if err := s.Senders[i].check(); err != nil {
			return fmt.Errorf("%w: sender %d: %w", ErrScenario, i, err)
		}
	}
	return nil
}

func (s *Sender) check() error {
	switch {
	case s.Start < 0:
		return fmt.Errorf("start at %v, want no negative time", s.Start)
	case s.TCP != nil:
		return s.checkTCP()
	case s.Op != roce.OpWrite && s.Op != roce.OpRead && s.Op != roce.OpSend:
		return fmt.Errorf("operation %v, want WRITE, READ or SEND", s.Op)
	case s.Size <= 0 || s.Depth <= 0 || s.Size > maxMemory/s.Depth:
		return fmt.Errorf("%d operations of %d bytes, want 1 to %d bytes in total", s.Depth, s.Size,
			maxMemory)
	case s.QPs < 0:
		return fmt.Errorf("%d QPs, want a number that is not negative", s.QPs)
	}
	return nil
}

func (s *Sender) checkTCP() error {
	switch most := loopback.DefaultMTU - tcpHeaders; {
	case s.TCP.mss() < minMSS || s.TCP.mss() > most:
		return fmt.Errorf("an MSS of %d bytes, want %d to %d", s.TCP.MSS, minMSS, most)
	case s.Plan.Corrupt > 0:
		return errors.New("corrupted frames of TCP, whose model has no checksums")
	}
	return nil
}

// qps returns the number of QPs.
func (s *Sender) qps() int { return max(s.QPs, 1) }
