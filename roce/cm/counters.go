package cm

import (
	"iter"
	"strings"
)

// Counters count what a CM did. They belong to its thread. The arrays have a place for each message,
// by Attribute.Index.
type Counters struct {
	Received  [NumAttributes]uint64 // well-formed MADs
	Sent      [NumAttributes]uint64 // repetitions included
	Repeated  [NumAttributes]uint64 // put in line again, for a time-out or a duplicate
	Duplicate [NumAttributes]uint64 // received again and answered as before
	Late      [NumAttributes]uint64 // received in a state that has no use for them; dropped

	BadLength       uint64 // MADs of another length than 256 bytes
	BadHeader       uint64 // of another base version, class version, or method
	BadClass        uint64 // of another management class
	BadAttribute    uint64 // unknown messages
	BadSource       uint64 // from a multicast or zero address
	Malformed       uint64 // fields that make no sense
	UnknownID       uint64 // for a communication ID that is not here
	WrongPeer       uint64 // for a communication ID of another peer
	DropBacklog     uint64 // requests: the listener's backlog is full
	DropSource      uint64 // requests: their source has its share of the backlog
	DropHalfOpen    uint64 // requests: too many connections, of all or of this source, not yet established
	DropFull        uint64 // requests: no room for a connection
	DropAnswer      uint64 // answers: too many waiting to be sent
	Stale           uint64 // stale connections found
	EvictedHalfOpen uint64 // accepted and not established in time, given up for a new request
	EvictedTimeWait uint64 // TIME-WAITs cut short for want of room
	EvictedRelease  uint64 // DREQs whose answer was not awaited any longer for want of room
	EvictedLinger   uint64 // refusals and SIDR replies forgotten early for want of room
	Timeouts        uint64 // repetitions for want of an answer
	GaveUp          uint64 // exchanges without any answer
}

// Sizes say how much a CM holds. All but Listeners are 0 when every connection has ended and its
// events are polled.
type Sizes struct {
	Conns     int // connections and SIDR exchanges, TIME-WAIT and kept refusals included
	Remote    int // entries of the tables that find duplicates
	QPs       int // entries of the table that finds stale connections
	HalfOpen  int // asked for by peers and not established
	Sources   int // peers that have some of those
	Pending   int // requests waiting for the application
	TimeWait  int
	Linger    int // refusals and SIDR replies kept to be repeated
	Timers    int
	Events    int // connections with events to poll
	Transmit  int // connections with something to send
	Answers   int // answers without a connection to send
	Listeners int
}

// perMessage and single give the counters their names.
var (
	perMessage = []struct {
		name string
		of   func(*Counters) *[NumAttributes]uint64
	}{
		{"received", func(c *Counters) *[NumAttributes]uint64 { return &c.Received }},
		{"sent", func(c *Counters) *[NumAttributes]uint64 { return &c.Sent }},
		{"repeated", func(c *Counters) *[NumAttributes]uint64 { return &c.Repeated }},
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
		{"drop_backlog", func(c *Counters) *uint64 { return &c.DropBacklog }},
		{"drop_source", func(c *Counters) *uint64 { return &c.DropSource }},
		{"drop_half_open", func(c *Counters) *uint64 { return &c.DropHalfOpen }},
		{"drop_full", func(c *Counters) *uint64 { return &c.DropFull }},
		{"drop_answer", func(c *Counters) *uint64 { return &c.DropAnswer }},
		{"stale", func(c *Counters) *uint64 { return &c.Stale }},
		{"evicted_half_open", func(c *Counters) *uint64 { return &c.EvictedHalfOpen }},
		{"evicted_time_wait", func(c *Counters) *uint64 { return &c.EvictedTimeWait }},
		{"evicted_release", func(c *Counters) *uint64 { return &c.EvictedRelease }},
		{"evicted_linger", func(c *Counters) *uint64 { return &c.EvictedLinger }},
		{"timeouts", func(c *Counters) *uint64 { return &c.Timeouts }},
		{"gave_up", func(c *Counters) *uint64 { return &c.GaveUp }},
	}
)

// All yields every counter with its name, in a fixed order: received_req, received_mra ...
func (c *Counters) All() iter.Seq2[string, uint64] {
	return func(yield func(string, uint64) bool) {
		for _, n := range perMessage {
			for i, v := range n.of(c) {
				if !yield(n.name+"_"+strings.ToLower(attrNames[i]), v) {
					return
				}
			}
		}
		for _, n := range single {
			if !yield(n.name, *n.of(c)) {
				return
			}
		}
	}
}
