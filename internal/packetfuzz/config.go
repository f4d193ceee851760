package packetfuzz

import (
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
)

// Checks that the host still serves an honest peer.
const (
	CheckRping = "rping" // a round of rping, with any RDMA host that runs 'rping -s -P' or gorxe up
	CheckPing  = "ping"  // a gorxe ping, with a host that runs gorxe up
)

// Servers to which the fuzzer connects in order to attack a queue pair.
const (
	ViaRping    = "rping"    // by the connection manager
	ViaPerftest = "perftest" // over TCP; the host also tells the address and key of its memory
)

// Defaults of Config.
const (
	DefaultRate       = 1000
	DefaultCheckEvery = 1000
	DefaultPatience   = 10 * time.Second
)

// Config describes a run. Port and Target are required.
type Config struct {
	Port   driver.Port // Run closes it
	Target netip.Addr
	GID    device.GIDIndex // local address; device.AnyGID: that of the route

	Seed         uint64
	First, Count uint64   // cases First to First+Count-1
	Rate         int      // frames per second; 0: DefaultRate
	Skip         []string // kinds of cases not to send: see Kinds

	Check      string        // CheckRping or CheckPing; empty: CheckRping
	CheckPort  int           // RDMA port of rping, or TCP port of gorxe ping; 0: the default
	CheckEvery uint64        // cases between two checks; 0: DefaultCheckEvery
	Patience   time.Duration // of a check, with three attempts; 0: DefaultPatience

	Via     string   // how to connect the queue pair to attack; empty: ViaRping
	ViaPort int      // RDMA port of rping, or TCP port of perftest; 0: the default
	Aim     *Aim     // a queue pair to attack instead; nil: a connection
	PKey    bth.PKey // of the packets; 0: the default

	// Started, if not nil, is called when the first check has succeeded.
	Started func()
	// Progress, if not nil, is called after each case.
	Progress func()
	// Options are those of the honest peer's device.
	Options []roce.Option
}

// Aim is a queue pair that the user has created at the host, instead of a connection.
type Aim struct {
	QPN  bth.QPN
	PSN  bth.PSN // the next one that it expects
	QKey bth.QKey
	MTU  bth.MTU // path MTU; 0: 1024
	// Memory that the fuzzer may access.
	Addr uint64
	RKey bth.RKey
	Len  uint32
}

// Kinds returns the names of all kinds of cases.
func Kinds() (names []string) {
	for i := range packets.Classes() {
		names = append(names, packets.Classes()[i].Name)
	}
	return append(names, randomErrors)
}

// Kind counts the cases of a kind.
type Kind struct {
	Name   string `json:"name"`
	Cases  uint64 `json:"cases"`
	Frames uint64 `json:"frames"`
}

// Answer counts the packets of a kind that the host sent to the attacked connections.
type Answer struct {
	Name    string `json:"name"`
	Packets uint64 `json:"packets"`
}

// Report is the result of a run.
type Report struct {
	Target    string `json:"target"`
	Interface string `json:"interface"`
	Datapath  string `json:"datapath"`
	Seed      uint64 `json:"seed"`
	First     uint64 `json:"from"`
	Cases     uint64 `json:"cases"` // sent or skipped
	Skipped   uint64 `json:"skipped"`

	Frames    uint64  `json:"frames"` // sent
	Bytes     uint64  `json:"bytes"`
	NotSent   uint64  `json:"frames_not_sent"` // longer or shorter than the interface allows
	Seconds   float64 `json:"seconds"`
	Sessions  uint64  `json:"connections"`         // opened to aim at
	Refused   uint64  `json:"connections_refused"` // could not be opened
	Ended     uint64  `json:"connections_ended"`   // by the host, or by an error that it reported
	Checks    uint64  `json:"checks"`
	LastCheck uint64  `json:"last_good_check"` // number of cases sent before the last good check
	Serving   bool    `json:"serving"`         // the last check succeeded

	Kinds   []Kind   `json:"kinds"`
	Answers []Answer `json:"answers"`
}
