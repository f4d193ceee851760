package bench

import (
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/roce"
)

// spec tells a side what to measure.
type spec struct {
	Kind     kind          `json:"kind"`
	Test     test          `json:"test"`
	Size     int           `json:"size"` // bytes of a message
	MTU      bth.MTU       `json:"mtu"`
	Spin     bool          `json:"spin"`
	Loss     float64       `json:"loss"`
	Seed     uint64        `json:"seed"`
	Mode     string        `json:"mode"`
	Active   bool          `json:"active"` // this side sends; the other one receives or answers
	Warmup   time.Duration `json:"warmup_ns"`
	Duration time.Duration `json:"duration_ns"`
}

// What a side can be asked to do, in this order. A passive side starts before the active one runs, and stops after it.
const (
	doPrepare = "prepare" // make what is needed; the answer is a hello
	doStart   = "start"   // passive: join the peer, and serve it until doStop
	doRun     = "run"     // active: join the peer and measure; the answer is an outcome
	doStop    = "stop"    // put everything away; the answer is a passive side's outcome
)

// request is one line to a side.
type request struct {
	Do   string `json:"do"`
	Spec *spec  `json:"spec,omitempty"`
	Peer *hello `json:"peer,omitempty"`
}

// reply is one line back.
type reply struct {
	Error   string   `json:"error,omitempty"`
	Hello   *hello   `json:"hello,omitempty"`
	Outcome *outcome `json:"outcome,omitempty"`
}

// hello is what the peer has to know of a side.
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
	Messages    uint64        `json:"messages"` // delivered in Elapsed
	Elapsed     time.Duration `json:"elapsed_ns"`
	All         uint64        `json:"all"` // messages, those before and after Elapsed included
	P50         time.Duration `json:"p50_ns"`
	P99         time.Duration `json:"p99_ns"`
	CPU         time.Duration `json:"cpu_ns"` // of the whole process, while All were delivered
	Retransmits uint64        `json:"retransmits"`
}
