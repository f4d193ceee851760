package cm

import (
	"iter"
	"strings"
)

// Counters count what a CM did. Attribute.Index is the index of the arrays.
type Counters struct {
	Received      [NumAttributes]uint64 // well-formed MADs
	Sent          [NumAttributes]uint64 // including retransmissions
	Retransmitted [NumAttributes]uint64 // after a timeout, or to answer a duplicate
	Duplicate     [NumAttributes]uint64 // duplicates received, and answered as before
	Late          [NumAttributes]uint64 // dropped because the state does not expect them

	BadLength       uint64 // MADs that are not 256 bytes long
	BadHeader       uint64 // wrong base version, class version or method
	BadClass        uint64 // another management class
	BadAttribute    uint64 // unknown message
	BadSource       uint64 // from a multicast or zero address
	Malformed       uint64 // invalid field
	UnknownID       uint64 // unknown communication ID
	WrongPeer       uint64 // communication ID of another peer's connection
	DropRate        uint64 // messages without connection dropped: rate limit
	DropPeer        uint64 // requests dropped: Config.Peers or ListenParams.Peers
	DropBacklog     uint64 // requests dropped: the listener's backlog is full
	DropSource      uint64 // requests dropped: their source has used its share of the backlog
	DropHalfOpen    uint64 // requests dropped: too many half-open connections
	DropFull        uint64 // requests dropped: too many connections
	DropAnswer      uint64 // answers dropped: too many are queued
	BadPKey         uint64 // requests refused: they name a partition that the port is not in
	DropUnverified  uint64 // messages not sent: the peer may have forged its address
	Stale           uint64 // messages that name the peer's QP of another connection
	EvictedHalfOpen uint64 // accepted connections given up for a new request
	EvictedTimeWait uint64 // TIME-WAITs ended early to free a slot
	EvictedRelease  uint64 // connections removed before their DREP, to free a slot
	EvictedLinger   uint64 // refusals and SIDR replies removed early to free a slot
	Timeouts        uint64 // answers that did not arrive in time
	GaveUp          uint64 // exchanges given up without an answer
}

// Sizes are the numbers of things that a CM holds. All but Listeners are 0 when every connection
// has ended and its events are polled.
type Sizes struct {
	Conns     int // connections and SIDR exchanges, including TIME-WAIT and kept refusals
	Remote    int // entries of the table that finds duplicates
	QPs       int // entries of the table that finds stale connections
	HalfOpen  int // requested by peers and not established
	Sources   int // addresses of those peers
	Pending   int // requests that the user has not answered
	TimeWait  int
	Linger    int // refusals and SIDR replies kept to answer duplicates
	Timers    int
	Events    int // connections with events to poll
	Transmit  int // connections with something to send
	Answers   int // queued answers that need no connection
	Listeners int
}

// perMessage and single list the names of the counters.
var (
	perMessage = []struct {
		name string
		of   func(*Counters) *[NumAttributes]uint64
	}{
		{"received", func(c *Counters) *[NumAttributes]uint64 { return &c.Received }},
		{"sent", func(c *Counters) *[NumAttributes]uint64 { return &c.Sent }},
		{"repeated", func(c *Counters) *[NumAttributes]uint64 { return &c.Retransmitted }},
		{"duplicate", func(c *Counters) *[NumAttributes]uint64 { return &c.Duplicate }},
		{"late", func(c *Counters) *[NumAttributes]uint64 { return &c.Late }},
	}
	single = []struct {
		name string
		of   func(*Counters) *uint64
	}{
		{"bad_length", func(c *Counters) *uint64 { return &c.BadLength }},
		{"bad_header", func(c *Counters) *uint64 { return &c.BadHeader }},
		{"bad_class", func(c *Counters) *uint64 { return &c.BadClass }},
		{"bad_attribute", func(c *Counters) *uint64 { return &c.BadAttribute }},
		{"bad_source", func(c *Counters) *uint64 { return &c.BadSource }},
		{"malformed", func(c *Counters) *uint64 { return &c.Malformed }},
		{"unknown_id", func(c *Counters) *uint64 { return &c.UnknownID }},
		{"wrong_peer", func(c *Counters) *uint64 { return &c.WrongPeer }},
		{"drop_rate", func(c *Counters) *uint64 { return &c.DropRate }},
		{"drop_peer", func(c *Counters) *uint64 { return &c.DropPeer }},
		{"drop_backlog", func(c *Counters) *uint64 { return &c.DropBacklog }},
		{"drop_source", func(c *Counters) *uint64 { return &c.DropSource }},
		{"drop_half_open", func(c *Counters) *uint64 { return &c.DropHalfOpen }},
		{"drop_full", func(c *Counters) *uint64 { return &c.DropFull }},
		{"drop_answer", func(c *Counters) *uint64 { return &c.DropAnswer }},
		{"bad_pkey", func(c *Counters) *uint64 { return &c.BadPKey }},
		{"drop_unverified", func(c *Counters) *uint64 { return &c.DropUnverified }},
		{"stale", func(c *Counters) *uint64 { return &c.Stale }},
		{"evicted_half_open", func(c *Counters) *uint64 { return &c.EvictedHalfOpen }},
		{"evicted_time_wait", func(c *Counters) *uint64 { return &c.EvictedTimeWait }},
		{"evicted_release", func(c *Counters) *uint64 { return &c.EvictedRelease }},
		{"evicted_linger", func(c *Counters) *uint64 { return &c.EvictedLinger }},
		{"timeouts", func(c *Counters) *uint64 { return &c.Timeouts }},
		{"gave_up", func(c *Counters) *uint64 { return &c.GaveUp }},
	}
)

// All returns an iterator over the names and values of all counters, in a fixed order:
// received_req, received_mra ...
func (c Counters) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, n := range perMessage {
			for i, v := range n.of(&c) {
				if !yield(n.name+"_"+strings.ToLower(attrNames[i]), v) {
					return
				}
			}
		}
		for _, n := range single {
			if !yield(n.name, *n.of(&c)) {
				return
			}
		}
	}
}
