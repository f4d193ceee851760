package model

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/qp/sched"
)

// Kind is a kind of resource, in the order of the chain in which one leads to the next.
type Kind int

// The kinds.
const (
	QPC Kind = iota // QP context: says where the WQEs are
	WQE             // work queue elements: say which memory
	MPT             // memory protection table: may this key do that
	MTT             // memory translation table: where the memory is
	Kinds
)

// String is the kind's name in the paper.
func (k Kind) String() string { return [Kinds]string{"QPC", "WQE", "MPT", "MTT"}[k] }

// Params describe a NIC and its host. Default has those of the paper.
type Params struct {
	LinkRate int64         // bits a second
	PCIeRate int64         // bits a second, host to NIC
	PCIeRTT  time.Duration // from a read request to the first byte of its answer
	Cache    [Kinds]int    // entries: of QPC, MPT and MTT a QP's or MR's; of WQE a turn's worth
	Size     [Kinds]int    // bytes that one entry's read takes; of WQE one element
	Slots    int           // QPs that a lookup stage holds, each waiting for its own miss
	Units    int           // in a NIC without a pipeline: QPs that are looked up at once, overtaking each other
	Reads    int           // payload reads under way
	Hit      time.Duration // a lookup that finds its entry
	Message  int           // bytes of payload
	Overhead int           // bytes that each message takes more on the wire
	Ack      int           // bytes of an acknowledgement on the wire
	Chunk    int           // bytes of payload that a QP sends in a turn
	Posted   int           // messages that each QP keeps posted
	Prepare  time.Duration // the host builds a WQE
	Pass     time.Duration // a packet's way through a NIC: protocol pipeline, MAC and PHY
	Cable    time.Duration // one way
}

// Default is the NIC of the paper: its stated values, and for the others those that package documentation justifies.
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

// Bounds of what is modelled.
const (
	MaxQPs   = 65536
	MaxCache = 1 << 20
	MaxChunk = 1 << 20
)

// ErrParams says that a NIC cannot be like that.
var ErrParams = errors.New("rnicsim: no NIC is like that")

// Check refuses what makes no sense.
func (p *Params) Check() error {
	for k := range Kinds {
		if p.Cache[k] < 1 || p.Cache[k] > MaxCache {
			return fmt.Errorf("%w: the %v cache has %d entries; choose 1 to %d", ErrParams, k, p.Cache[k], MaxCache)
		}
		if p.Size[k] < 1 || p.Size[k] > 4096 {
			return fmt.Errorf("%w: an entry of kind %v has %d bytes; choose 1 to 4096", ErrParams, k, p.Size[k])
		}
	}
	for _, c := range []struct {
		what          string
		v, least, top int64
		unit          string
	}{
		{"the link's rate", p.LinkRate, 1e6, 1e13, " bit/s"},
		{"the PCIe rate", p.PCIeRate, 1e6, 1e13, " bit/s"},
		{"the PCIe round trip", int64(p.PCIeRTT), 1, 1e6, " ns"},
		{"slots of a stage", int64(p.Slots), 1, 64, ""},
		{"units", int64(p.Units), 1, 64, ""},
		{"payload reads", int64(p.Reads), 1, 65536, ""},
		{"a hit", int64(p.Hit), 0, 1e6, " ns"},
		{"the message", int64(p.Message), 1, MaxChunk, " B"},
		{"the overhead", int64(p.Overhead), 0, 1024, " B"},
		{"an acknowledgement", int64(p.Ack), 0, 1024, " B"},
		{"the chunk", int64(p.Chunk), int64(p.Message), MaxChunk, " B"},
		{"the messages posted", int64(p.Posted), 1, 65536, ""},
		{"building a WQE", int64(p.Prepare), 0, 1e6, " ns"},
		{"a pass", int64(p.Pass), 0, 1e6, " ns"},
		{"the cable", int64(p.Cable), 0, 1e6, " ns"},
	} {
		if c.v < c.least || c.v > c.top {
			return fmt.Errorf("%w: %s of %d%s; choose %d to %d", ErrParams, c.what, c.v, c.unit, c.least, c.top)
		}
	}
	return nil
}

// Turn is the number of messages that a QP sends in a turn.
func (p *Params) Turn() int { return max(1, p.Chunk/p.Message) }

// Peak is the message rate that the link allows, in million a second.
func (p *Params) Peak() float64 {
	return float64(p.LinkRate) / float64((p.Message+p.Overhead)*8) / 1e6
}

// Window is the prefetch window by the paper's formula: four kinds, one PCIe round trip each.
func (p *Params) Window() int {
	return sched.Window(p.Turn()*p.Message, p.Peak()*1e6*float64(p.Message), int(Kinds), p.PCIeRTT)
}

// span is a simulated time or the length of one, in picoseconds: rates come out exact enough, and sums do not depend on
// their order.
type span int64

const nanosecond span = 1000

func spanOf(d time.Duration) span { return span(d) * nanosecond }

// serial is how long bytes take at rate, bits a second.
func serial(bytes int, rate int64) span { return span(float64(bytes) * 8 / float64(rate) * 1e12) }
