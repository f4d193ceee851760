package bench

import (
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
)

// spec describes a measurement to a side.
type spec struct {
	Kind     kind          `json:"kind"`
	Test     test          `json:"test"`
	Size     int           `json:"size"` // bytes of a message
	MTU      bth.MTU       `json:"mtu"`
	Spin     bool          `json:"spin"`
	Loss     float64       `json:"loss"`
	Seed     uint64        `json:"seed"`
	Active   bool          `json:"active"` // this side sends; the other one receives or answers
	Warmup   time.Duration `json:"warmup_ns"`
	Duration time.Duration `json:"duration_ns"`

	// Of gorxe.
	Transport device.Transport `json:"transport"`
	Op        operation        `json:"op"`
	Port      string           `json:"port"`
}

// The requests of a measurement, in this order. The passive side starts before the active one
// runs, and stops after it.
const (
	doPrepare = "prepare" // create what is needed; the reply has a hello
	doStart   = "start"   // passive: connect to the peer, and serve it until doStop
	doRun     = "run"     // active: connect to the peer and measure; the reply has an outcome
	doStop    = "stop"    // close everything; the reply of the passive side has an outcome
)

// request is a line to a side.
type request struct {
	Do   string `json:"do"`
	Spec *spec  `json:"spec,omitempty"`
	Peer *hello `json:"peer,omitempty"`
}

// reply is a line from a side.
type reply struct {
	Error   string   `json:"error,omitempty"`
	Hello   *hello   `json:"hello,omitempty"`
	Outcome *outcome `json:"outcome,omitempty"`
}

// hello is what the peer needs to know about a side.
type hello struct {
	Addr     netip.Addr        `json:"addr"`
	Port     uint16            `json:"port,omitempty"` // of a socket
	MAC      bth.MAC           `json:"mac"`
	Endpoint roce.Endpoint     `json:"endpoint"`
	Buffer   roce.RemoteBuffer `json:"buffer"`
	Datapath string            `json:"datapath,omitempty"`
}

// outcome is what a side measured.
type outcome struct {
	Messages    uint64        `json:"messages"` // delivered during Elapsed
	Elapsed     time.Duration `json:"elapsed_ns"`
	All         uint64        `json:"all"` // messages including those before and after Elapsed
	P50         time.Duration `json:"p50_ns"`
	P99         time.Duration `json:"p99_ns"`
	CPU         time.Duration `json:"cpu_ns"` // of the process, for all messages
	Retransmits uint64        `json:"retransmits"`
}
