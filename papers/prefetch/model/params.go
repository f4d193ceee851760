package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/qp/sched"
)

// Kind is a kind of resource. Each resource says where the one of the next kind is.
type Kind int

// The kinds of resources.
const (
	QPC   Kind = iota // QP context: where the WQEs are
	WQE               // work queue elements: which memory
	MPT               // memory protection table: access rights of a key
	MTT               // memory translation table: where the memory is
	Kinds             // number of kinds
)

// String returns the name that the paper uses.
func (k Kind) String() string { return [Kinds]string{"QPC", "WQE", "MPT", "MTT"}[k] }

// Params describe a NIC and its host. Default returns those of the paper.
type Params struct {
	LinkRate int64         // bits per second
	PCIeRate int64         // bits per second, host to NIC
	PCIeRTT  time.Duration // from a read request to the first byte of the data
	Cache    [Kinds]int    // entries; one of WQE holds the WQEs of a turn
	Size     [Kinds]int    // bytes of an entry; of WQE: bytes of one element
	Slots    int           // QPs in a lookup stage, each waiting for its own miss
	Units    int           // in a NIC without a pipeline: QPs that are looked up independently
	Reads    int           // outstanding payload reads
	Hit      time.Duration // duration of a lookup that hits
	Message  int           // bytes of payload
	Overhead int           // further bytes of a message on the wire
	Ack      int           // bytes of an acknowledgment on the wire
	Chunk    int           // bytes of payload that a QP sends in a turn
	Posted   int           // messages that each QP keeps posted
	Prepare  time.Duration // time in which the host builds a WQE
	Pass     time.Duration // delay of a packet in a NIC: protocol pipeline, MAC and PHY
	Cable    time.Duration // propagation delay, one way
}

// Default returns the NIC of the paper: stated values, and for the others the assumptions that
// Config.Assumptions justifies.
func Default() Params {
	return Params{
		LinkRate: 100e9, PCIeRate: 128e9, PCIeRTT: 500 * time.Nanosecond,
		Cache: [Kinds]int{2048, 2048, 2048, 2048},
		Size:  [Kinds]int{256, 64, 64, 64},
		Slots: 2, Units: 7, Reads: 256, Hit: 4 * time.Nanosecond,
		Message: 64, Overhead: 102, Ack: 90, Chunk: 640, Posted: 50,
		Prepare: 500 * time.Nanosecond, Pass: 90 * time.Nanosecond, Cable: 15 * time.Nanosecond,
	}
}

// Limits of the model.
const (
	MaxQPs   = 65536
	MaxCache = 1 << 20
	MaxChunk = 1 << 20
)

// ErrParams is wrapped by errors about parameters that are out of range.
var ErrParams = errors.New("invalid parameters of the model")

// Check returns an error that wraps ErrParams if a parameter is out of range.
func (p *Params) Check() error {
	for k := range Kinds {
		if p.Cache[k] < 1 || p.Cache[k] > MaxCache {
			return fmt.Errorf("%w: entries of the %v cache: %d: choose 1 to %d", ErrParams, k,
				p.Cache[k], MaxCache)
		}
		if p.Size[k] < 1 || p.Size[k] > 4096 {
			return fmt.Errorf("%w: bytes of a %v entry: %d: choose 1 to 4096", ErrParams, k,
				p.Size[k])
		}
	}
	for _, c := range []struct {
		what          string
		v, least, top int64
		unit          string
	}{
		{"link rate", p.LinkRate, 1e6, 1e13, " bit/s"},
		{"PCIe rate", p.PCIeRate, 1e6, 1e13, " bit/s"},
		{"PCIe round trip", int64(p.PCIeRTT), 1, 1e6, " ns"},
		{"slots of a stage", int64(p.Slots), 1, 64, ""},
		{"units", int64(p.Units), 1, 64, ""},
		{"outstanding payload reads", int64(p.Reads), 1, 65536, ""},
		{"lookup that hits", int64(p.Hit), 0, 1e6, " ns"},
		{"message", int64(p.Message), 1, MaxChunk, " B"},
		{"overhead of a message", int64(p.Overhead), 0, 1024, " B"},
		{"acknowledgment", int64(p.Ack), 0, 1024, " B"},
		{"chunk", int64(p.Chunk), int64(p.Message), MaxChunk, " B"},
		{"posted messages", int64(p.Posted), 1, 65536, ""},
		{"building a WQE", int64(p.Prepare), 0, 1e6, " ns"},
		{"pass through a NIC", int64(p.Pass), 0, 1e6, " ns"},
		{"cable", int64(p.Cable), 0, 1e6, " ns"},
	} {
		if c.v < c.least || c.v > c.top {
			return fmt.Errorf("%w: %s: %d%s: choose %d to %d", ErrParams, c.what, c.v, c.unit,
				c.least, c.top)
		}
	}
	return nil
}

// Turn returns the number of messages that a QP sends in a turn.
func (p *Params) Turn() int { return max(1, p.Chunk/p.Message) }

// Peak returns the message rate that the link allows, in million per second.
func (p *Params) Peak() float64 {
	return float64(p.LinkRate) / float64((p.Message+p.Overhead)*8) / 1e6
}

// Window returns the prefetch window by the paper's formula: four kinds, one PCIe round trip each.
func (p *Params) Window() int {
	return sched.Window(p.Turn()*p.Message, p.Peak()*1e6*float64(p.Message), int(Kinds), p.PCIeRTT)
}

// span is a point in simulated time or a duration, in picoseconds: precise enough for rates, and
// sums do not depend on their order.
type span int64

const nanosecond span = 1000

func spanOf(d time.Duration) span { return span(d) * nanosecond }

// serial returns the transmission time of bytes at a rate in bits per second.
func serial(bytes int, rate int64) span { return span(float64(bytes) * 8 / float64(rate) * 1e12) }
