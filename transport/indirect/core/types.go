package core

import (
	"errors"
	"fmt"
)

// Time is nanoseconds on the driver's clock.
type Time int64

// Never is later than every Time.
const Never Time = 1<<63 - 1

// TID names a transfer among those of one initiator on one connection. Its low bits are the entry that it occupies in the tables
// of both ends; the TIDs of an entry only grow (modulo 2^32).
type TID uint32

// newer tells whether t comes after u, across the wrap.
func (t TID) newer(u TID) bool { return int32(t-u) > 0 }

// Bounds and defaults.
const (
	MaxEntries = 256 // transfers under way, each direction; a power of two
	MaxSlots   = 256 // slots of an indirect buffer that one connection has
	MaxSegment = 1 << 24
	MaxLength  = 1 << 30 // bytes of a transfer
	Window     = 8       // data messages in flight (the paper's window)

	DefaultEntries  = 16
	DefaultTimeout  = Time(2e6)  // 2 ms
	DefaultPatience = Time(10e9) // 10 s
	DefaultSilence  = Time(20e9) // 20 s

	indirectAfter = 2 // time-outs without an answer after which data is sent indirectly
	keepalives    = 8 // of a transfer that lasts, and looks after the peer: so many a Silence
	idleTimes     = 3 // so many times Silence between two looks while nothing is unfinished

	releasesAtOnce = 16 // release requests, one a Timeout; then the time in between doubles,
	slowest        = 6  // so many times
)

// NoSlot is the slot of a transfer that has none.
const NoSlot = 0xffff

// Errors.
var (
	ErrConfig   = errors.New("indirect: configuration out of range")
	ErrFull     = errors.New("indirect: too many transfers under way: wait for one to be done, or raise Entries")
	ErrLength   = errors.New("indirect: length out of range: a transfer has 1 byte to 1 GiB")
	ErrTooLarge = errors.New("indirect: the transfer is larger than a slot of the peer's indirect buffer: cut it, or give the peer larger slots (MaxTransfer)")
	ErrProtocol = errors.New("indirect: the peer broke the protocol; the connection is of no further use")
	ErrSilent   = errors.New("indirect: the peer has fallen silent with transfers unfinished")
	ErrLost     = errors.New("indirect: connection lost")
)

// Kind is the type of a transfer, as the initiator sees it.
type Kind uint8

const (
	Write Kind = iota
	Read
)

func (k Kind) String() string { return [...]string{"WRITE", "READ"}[k&1] }

// Status is how a transfer ended.
type Status uint8

const (
	StatusOK       Status = iota
	StatusRefused         // the responder could not register the memory for as long as Patience
	StatusNoAnswer        // the responder did not answer for as long as Patience
	StatusLost            // the connection ended
)

func (s Status) String() string {
	if names := [...]string{"success", "registration refused", "no answer", "connection lost"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Local is memory at this end: an address and the key by which work requests name it.
type Local struct {
	Addr uint64
	LKey uint32
}

// Op is a transfer that the initiator's user wants. Base addresses are what the paper calls SBA and DBA.
type Op struct {
	Kind   Kind
	Local  Local  // source of a WRITE, destination of a READ (SBA)
	RKey   uint32 // READ: the key by which the peer may write to Local.Addr
	DBA    uint64 // address at the responder, as its user understands it
	Len    uint32 // bytes
	Cookie uint64 // comes back with the events
}

// Config says how a Machine behaves. The fields about the peer come from it when the connection is made.
type Config struct {
	Dynamic  bool // initiator: send indirectly where the paper's method does. False: the traditional method
	Entries  int  // transfers under way, each direction: the same at both ends
	Timeout  Time // of requests, answers to READs and releases
	Patience Time // how long a transfer may wait for its valid answer
	Silence  Time // how long a peer may say nothing while transfers are unfinished: the same at both ends

	PeerToken uint32 // what control messages to the peer begin with
	PeerSlots int    // of the peer's indirect buffer, for this end to fill
	PeerSlot  uint32 // bytes of one
	PeerBase  uint64 // address of the first
	PeerKey   uint32 // and its key
	Slots     int    // of this end's buffer, for the peer to fill
	Slot      uint32 // bytes of one
	Segment   uint32 // bytes of a data message, the same at both ends
	FirstTID  TID    // of this end's transfers; tests begin near the wrap
}

func (c *Config) check() error {
	for _, d := range []struct {
		v   *Time
		def Time
	}{{&c.Timeout, DefaultTimeout}, {&c.Patience, DefaultPatience}, {&c.Silence, DefaultSilence}} {
		if *d.v == 0 {
			*d.v = d.def
		}
		if *d.v < 0 {
			return fmt.Errorf("%w: a negative time", ErrConfig)
		}
	}
	if c.Entries == 0 {
		c.Entries = DefaultEntries
	}
	switch {
	case c.Entries < 1 || c.Entries > MaxEntries || c.Entries&(c.Entries-1) != 0:
		return fmt.Errorf("%w: %d entries; give a power of two up to %d", ErrConfig, c.Entries, MaxEntries)
	case c.Slots < 0 || c.Slots > MaxSlots || c.PeerSlots < 0 || c.PeerSlots > MaxSlots:
		return fmt.Errorf("%w: %d and %d slots; give 0 to %d", ErrConfig, c.Slots, c.PeerSlots, MaxSlots)
	case c.Segment < 1 || c.Segment > MaxSegment:
		return fmt.Errorf("%w: segments of %d bytes; give 1 to %d", ErrConfig, c.Segment, MaxSegment)
	case c.Slot > MaxLength || c.PeerSlot > MaxLength || (c.Slots > 0 && c.Slot == 0) || (c.PeerSlots > 0 && c.PeerSlot == 0):
		return fmt.Errorf("%w: slots of %d and %d bytes; give 1 to %d", ErrConfig, c.Slot, c.PeerSlot, MaxLength)
	}
	return nil
}

// ActionKind says what Poll wants done.
type ActionKind uint8

const (
	// DoControl: send Msg as a datagram. It may be lost.
	DoControl ActionKind = iota
	// DoWrite: post an RDMA WRITE of Len bytes from Local to RemoteAddr and RKey, with Imm if WithImm, and call DataDone when it has
	// completed. WRITEs of a connection are posted in order. One of no bytes names no memory.
	DoWrite
	// DoRegister: make [DBA, DBA+Len) ready for the transfer and call Registered with what came of it, before the next Poll or later.
	DoRegister
	// DoMove: copy Len bytes from offset Off of slot Slot to offset Off of the registered memory, now.
	DoMove
	// DoRelease: the transfer is over, the memory is the user's again. Delivered: all bytes are in it (WRITE), or have left (READ).
	DoRelease
	// DoAcked: tell the initiator's user that the request was taken. Whether really or by simulation is not told.
	DoAcked
	// DoSent: tell the initiator's user that all bytes of a WRITE have been acknowledged by the transport: the source is its own again.
	DoSent
	// DoDone: tell the initiator's user that the transfer has ended, with Status.
	DoDone
)

// Action is something for the driver to do. Which fields count is said at its kind.
type Action struct {
	Kind ActionKind

	Msg [MessageLen]byte // DoControl

	Local      Local // DoWrite, DoMove (the destination)
	RemoteAddr uint64
	RKey       uint32
	Imm        uint32
	WithImm    bool

	Entry uint16 // DoRegister, DoMove, DoRelease: of the responder's table
	TID   TID
	Type  Kind
	DBA   uint64
	Len   uint32

	Slot uint16 // DoMove
	Off  uint32 // DoMove

	Delivered bool   // DoRelease
	Status    Status // DoDone
	Cookie    uint64 // DoAcked, DoSent, DoDone
}

// Counters are plain numbers; read them on the driver's thread.
type Counters struct {
	// Initiator.
	Direct         uint64 `json:"direct"`           // WRITEs whose data went straight to the destination
	Indirect       uint64 `json:"indirect"`         // WRITEs whose data went into the indirect buffer
	Simulated      uint64 `json:"simulated_acks"`   // acknowledgements that no answer stood behind
	LateAnswers    uint64 `json:"late_answers"`     // real answers recorded and dropped
	BufferFull     uint64 `json:"buffer_full"`      // transfers that would have gone indirectly, had there been a slot
	Requests       uint64 `json:"requests"`         // sent, repeated ones too
	InvalidAnswers uint64 `json:"invalid_answers"`  // received
	Timeouts       uint64 `json:"request_timeouts"` // requests without an answer in time
	Reads          uint64 `json:"reads"`            // READs done
	Failed         uint64 `json:"failed"`           // transfers that ended otherwise than well

	// Responder.
	Registered   uint64 `json:"registered"`    // registrations that succeeded
	Refused      uint64 `json:"refused"`       // and that failed
	Straight     uint64 `json:"straight"`      // indirect WRITEs that found the memory ready: nothing was parked
	Parked       uint64 `json:"parked"`        // indirect WRITEs that waited in the buffer
	ParkedBytes  uint64 `json:"parked_bytes"`  // in the buffer now
	MovedBytes   uint64 `json:"moved_bytes"`   // from slots to their destinations
	Delivered    uint64 `json:"delivered"`     // WRITEs released with all bytes in place
	ReadDirect   uint64 `json:"read_direct"`   // READs served upon confirmation
	ReadIndirect uint64 `json:"read_indirect"` // READs served without it
	Dropped      uint64 `json:"dropped"`       // WRITEs given up with data parked
	Orphaned     uint64 `json:"orphaned"`      // WRITEs dropped with data parked because the initiator was gone

	// Both.
	Malformed  uint64 `json:"malformed"`  // control messages that cannot be meant
	Stale      uint64 `json:"stale"`      // control messages of transfers that are over, or doubled
	Violations uint64 `json:"violations"` // broken rules of the data path
}

// Add adds up, field by field.
func (c *Counters) Add(d *Counters) {
	to, from := c.fields(), d.fields()
	for i := range to {
		*to[i] += *from[i]
	}
}

func (c *Counters) fields() [24]*uint64 {
	return [...]*uint64{
		&c.Direct, &c.Indirect, &c.Simulated, &c.LateAnswers, &c.BufferFull, &c.Requests, &c.InvalidAnswers, &c.Timeouts, &c.Reads, &c.Failed,
		&c.Registered, &c.Refused, &c.Straight, &c.Parked, &c.ParkedBytes, &c.MovedBytes, &c.Delivered, &c.ReadDirect, &c.ReadIndirect,
		&c.Dropped, &c.Orphaned, &c.Malformed, &c.Stale, &c.Violations,
	}
}
