package core

import (
	"errors"
	"fmt"
)

// Time is nanoseconds on the driver's clock.
type Time int64

// Never is later than every Time.
const Never Time = 1<<63 - 1

// TID identifies a transfer among those of one initiator on one connection. Its low bits are its
// entry in the tables of both sides. The TIDs of an entry increase, modulo 2^32.
type TID uint32

// newer reports whether t comes after u, across wrap-around.
func (t TID) newer(u TID) bool { return int32(t-u) > 0 }

// Limits and defaults.
const (
	MaxEntries = 256 // unfinished transfers per direction; a power of two
	MaxSlots   = 256 // slots of an indirect buffer per connection
	MaxSegment = 1 << 24
	MaxLength  = 1 << 30 // bytes per transfer
	Window     = 8       // data messages in flight (the paper's window)

	DefaultEntries  = 16
	DefaultTimeout  = Time(2e6)  // 2 ms
	DefaultPatience = Time(10e9) // 10 s
	DefaultSilence  = Time(20e9) // 20 s

	indirectAfter = 2 // timeouts without an answer after which data is sent indirectly
	// signs of life, and checks of the peer, per Silence while a transfer is unfinished
	keepalives = 8
	idleTimes  = 3 // times Silence between two checks while no transfer is unfinished

	releasesAtOnce = 16 // release requests, one per Timeout; then the interval doubles
	slowest        = 6  // doublings
)

// NoSlot is the slot of a transfer that has none.
const NoSlot = 0xffff

// Errors.
var (
	ErrConfig   = errors.New("indirect: configuration out of range")
	ErrFull     = errors.New("indirect: too many unfinished transfers: wait for one or raise Entries")
	ErrLength   = errors.New("indirect: length out of range: a transfer has 1 byte to 1 GiB")
	ErrTooLarge = errors.New("indirect: the transfer is larger than a slot of the peer's indirect buffer: split it or give the peer larger slots (MaxTransfer)")
	ErrProtocol = errors.New("indirect: the peer violated the protocol; the connection is unusable")
	ErrSilent   = errors.New("indirect: the peer is silent with unfinished transfers")
	ErrLost     = errors.New("indirect: connection lost")
)

// Kind is the type of a transfer as the initiator sees it.
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
	StatusRefused         // the responder could not register the memory within Patience
	StatusNoAnswer        // the responder did not answer within Patience
	StatusLost            // the connection ended
)

func (s Status) String() string {
	if names := [...]string{"success", "registration refused", "no answer",
		"connection lost"}; int(s) < len(names) {
		return names[s]
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// Local is memory of this side: an address and the key by which work requests name it.
type Local struct {
	Addr uint64
	LKey uint32
}

// Op is a transfer that the initiator's user requests. Base addresses are the paper's SBA and DBA.
type Op struct {
	Kind   Kind
	Local  Local  // source of a WRITE, destination of a READ (SBA)
	RKey   uint32 // READ: the key by which the peer may write to Local.Addr
	DBA    uint64 // address at the responder, interpreted by its user
	Len    uint32 // bytes
	Cookie uint64 // returned with the events
}

// Config configures a Machine. The fields about the peer are known when the connection is made.
type Config struct {
	Dynamic  bool // initiator: use the paper's method; false: the traditional method
	Entries  int  // unfinished transfers per direction, the same on both sides
	Timeout  Time // of requests, answers to READs and releases
	Patience Time // how long a transfer may wait for its valid answer
	// how long a peer may be silent while transfers are unfinished, the same on both sides
	Silence Time

	PeerToken uint32 // start of control messages to the peer
	PeerSlots int    // slots of the peer's indirect buffer for this side
	PeerSlot  uint32 // bytes per slot
	PeerBase  uint64 // address of the first slot
	PeerKey   uint32 // and its key
	Slots     int    // slots of this side's buffer for the peer
	Slot      uint32 // bytes per slot
	Segment   uint32 // bytes per data message, the same on both sides
	FirstTID  TID    // of this side's transfers; tests begin near the wrap-around
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
			return fmt.Errorf("%w: a time is negative", ErrConfig)
		}
	}
	if c.Entries == 0 {
		c.Entries = DefaultEntries
	}
	switch {
	case c.Entries < 1 || c.Entries > MaxEntries || c.Entries&(c.Entries-1) != 0:
		return fmt.Errorf("%w: %d entries; give a power of two up to %d", ErrConfig, c.Entries,
			MaxEntries)
	case c.Slots < 0 || c.Slots > MaxSlots || c.PeerSlots < 0 || c.PeerSlots > MaxSlots:
		return fmt.Errorf("%w: %d and %d slots; give 0 to %d", ErrConfig, c.Slots, c.PeerSlots,
			MaxSlots)
	case c.Segment < 1 || c.Segment > MaxSegment:
		return fmt.Errorf("%w: segments of %d bytes; give 1 to %d", ErrConfig, c.Segment,
			MaxSegment)
	case c.Slot > MaxLength || c.PeerSlot > MaxLength || (c.Slots > 0 && c.Slot == 0) ||
		(c.PeerSlots > 0 && c.PeerSlot == 0):
		return fmt.Errorf("%w: slots of %d and %d bytes; give 1 to %d", ErrConfig, c.Slot,
			c.PeerSlot, MaxLength)
	}
	return nil
}

// ActionKind is the kind of an Action.
type ActionKind uint8

const (
	// DoControl: send Msg as a datagram. It may be lost.
	DoControl ActionKind = iota
	// DoWrite: post an RDMA WRITE of Len bytes from Local to RemoteAddr and RKey, with Imm if
	// WithImm, and call DataDone when it has completed. WRITEs of a connection are posted in order.
	// An empty one names no memory.
	DoWrite
	// DoRegister: make [DBA, DBA+Len) ready for the transfer and call Registered with the result,
	// now or later.
	DoRegister
	// DoMove: copy Len bytes from offset Off of slot Slot to offset Off of the registered memory,
	// now.
	DoMove
	// DoRelease: the transfer has ended and the user may reuse the memory. Delivered: all bytes are
	// in it (WRITE) or have been sent (READ).
	DoRelease
	// DoAcked: tell the initiator's user that the request was taken, really or by simulation.
	DoAcked
	// DoSent: tell the initiator's user that the transport has acknowledged all bytes of a WRITE.
	// The source may be reused.
	DoSent
	// DoDone: tell the initiator's user that the transfer has ended, with Status.
	DoDone
)

// Action is something for the driver to do. Its kind tells which fields are set.
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

// Counters are plain numbers. Read them on the driver's goroutine.
type Counters struct {
	// Initiator. WRITEs whose data went directly to the destination
	Direct uint64 `json:"direct"`
	// WRITEs whose data went into the indirect buffer
	Indirect    uint64 `json:"indirect"`
	Simulated   uint64 `json:"simulated_acks"` // acknowledgments without an answer
	LateAnswers uint64 `json:"late_answers"`   // real answers recorded and ignored
	// transfers that found no slot to send indirectly
	BufferFull     uint64 `json:"buffer_full"`
	Requests       uint64 `json:"requests"`         // sent, including repetitions
	InvalidAnswers uint64 `json:"invalid_answers"`  // received
	Timeouts       uint64 `json:"request_timeouts"` // requests without an answer in time
	Reads          uint64 `json:"reads"`            // completed READs
	Failed         uint64 `json:"failed"`           // transfers that failed

	// Responder.
	Registered uint64 `json:"registered"` // registrations that succeeded
	Refused    uint64 `json:"refused"`    // registrations that failed
	// indirect WRITEs that found the memory ready: nothing was parked
	Straight     uint64 `json:"straight"`
	Parked       uint64 `json:"parked"`        // indirect WRITEs that waited in the buffer
	ParkedBytes  uint64 `json:"parked_bytes"`  // in the buffer now
	MovedBytes   uint64 `json:"moved_bytes"`   // from slots to their destinations
	Delivered    uint64 `json:"delivered"`     // WRITEs released with all bytes in place
	ReadDirect   uint64 `json:"read_direct"`   // READs served after confirmation
	ReadIndirect uint64 `json:"read_indirect"` // READs served without confirmation
	Dropped      uint64 `json:"dropped"`       // WRITEs abandoned with data parked
	// WRITEs dropped with data parked because the initiator was gone
	Orphaned uint64 `json:"orphaned"`

	// Both.
	Malformed  uint64 `json:"malformed"`  // malformed control messages
	Stale      uint64 `json:"stale"`      // control messages of ended transfers, and duplicates
	Violations uint64 `json:"violations"` // violations of the data path's rules
}

// Add adds d to c, field by field.
func (c *Counters) Add(d *Counters) {
	to, from := c.fields(), d.fields()
	for i := range to {
		*to[i] += *from[i]
	}
}

func (c *Counters) fields() [24]*uint64 {
	return [...]*uint64{
		&c.Direct, &c.Indirect, &c.Simulated, &c.LateAnswers, &c.BufferFull, &c.Requests,
		&c.InvalidAnswers, &c.Timeouts, &c.Reads, &c.Failed,
		&c.Registered, &c.Refused, &c.Straight, &c.Parked, &c.ParkedBytes, &c.MovedBytes,
		&c.Delivered, &c.ReadDirect, &c.ReadIndirect,
		&c.Dropped, &c.Orphaned, &c.Malformed, &c.Stale, &c.Violations,
	}
}
