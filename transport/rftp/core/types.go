package core

import (
	"errors"
	"fmt"
)

// Time is nanoseconds on the driver's clock.
type Time int64

// Never is later than every Time.
const Never Time = 1<<63 - 1

// Limits of the protocol.
const (
	MaxQPs       = 64      // data QPs of a connection
	MaxBlocks    = 1 << 16 // blocks of a pool
	MinBlockSize = 64      // bytes of payload of a block
	MaxBlockSize = 1 << 30 // bytes of payload of a block
	MaxSessions  = 4096    // sessions that are open at a time, in one direction
	MaxParams    = 1000    // bytes of parameters of a session
	MaxText      = 500     // bytes of the reason of an abort
	MaxMessage   = 4000    // bytes of a message of the program

	// ControlDepth is the number of control messages that a side can receive before it has posted
	// receives again.
	ControlDepth = 64
	// MessageWindow is the number of messages of the program that a side keeps until its program
	// takes them.
	MessageWindow = 64
)

// Defaults of Config.
const (
	DefaultSessions = 256
	DefaultSilence  = Time(20e9) // 20 s
)

const (
	// keepalives is the number of signs of life per Config.Silence.
	keepalives = 4
	// shareOf is the weight of a session's share: with several sessions, one may use at most this
	// many times the blocks that it leaves to the others.
	shareOf = 8
)

// Errors.
var (
	ErrConfig = errors.New("rftp: configuration out of range")
	// ErrPeer means that the peer violated the protocol.
	ErrPeer = errors.New("rftp: the peer violated the protocol")
	// ErrSilent means that nothing came from the peer for the time of Config.Silence.
	ErrSilent = errors.New("rftp: the peer is silent: check that its program and host run")
	// ErrLost means that the control QP or the last data QP failed.
	ErrLost = errors.New("rftp: connection lost")
	// ErrSessions means that Config.Sessions sessions are open.
	ErrSessions = errors.New("rftp: too many open sessions: wait for one to end")
	// ErrEnded means that the session has ended.
	ErrEnded = errors.New("rftp: the session has ended")
	// ErrBlock means that a block is not in the state that the call needs.
	ErrBlock = errors.New("rftp: the block is not in use by the caller")
	// ErrLength means that the bytes are more than the protocol allows.
	ErrLength = errors.New("rftp: too long")
	// ErrFull means that the peer's program has not taken earlier messages.
	ErrFull = errors.New("rftp: the peer has not taken earlier messages")
)

// AbortError is the reason for which the peer ended a session or the connection.
type AbortError struct {
	Session uint32 // 0: the connection
	Text    string // the peer's words; at most MaxText bytes
}

// Error returns the message.
func (e *AbortError) Error() string {
	what := "the connection"
	if e.Session != 0 {
		what = fmt.Sprintf("session %d", e.Session)
	}
	return fmt.Sprintf("rftp: the peer aborted %s: %q", what, e.Text)
}

// Mode is how the sink grants its blocks, and how it learns that a block has arrived.
type Mode uint8

const (
	// Proactive grants blocks as soon as they are free, all of them at the beginning. A WRITE with
	// immediate announces a block.
	Proactive Mode = iota
	// Paper grants up to two blocks for each block that arrives, and answers requests with one. A
	// control message announces a block when its WRITE has completed.
	Paper
	// OnDemand grants blocks only on request. A WRITE with immediate announces a block.
	OnDemand

	numModes
)

func (m Mode) String() string {
	if names := [...]string{"proactive", "paper", "on-demand"}; int(m) < len(names) {
		return names[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// Valid reports whether m is one of the constants.
func (m Mode) Valid() bool { return m < numModes }

// Config configures a Machine.
type Config struct {
	Mode         Mode   // the same on both sides
	BlockSize    uint32 // bytes of payload of a block, the same on both sides
	QPs          int    // data QPs, the same on both sides
	QPDepth      int    // WRITEs that a data QP can hold; 0: SourceBlocks
	SourceBlocks int    // blocks of this side's source pool
	Sessions     int    // that may be open at a time, in each direction; 0: DefaultSessions
	Rate         uint64 // bytes of payload that the source sends per second; 0: no limit
	Silence      Time   // how long the peer may be silent; 0: DefaultSilence
}

func (c *Config) check() error {
	if c.Sessions == 0 {
		c.Sessions = DefaultSessions
	}
	if c.Silence == 0 {
		c.Silence = DefaultSilence
	}
	if c.QPDepth == 0 {
		c.QPDepth = c.SourceBlocks
	}
	switch {
	case !c.Mode.Valid():
		return fmt.Errorf("%w: %v", ErrConfig, c.Mode)
	case c.BlockSize < MinBlockSize || c.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: blocks of %d bytes: choose %d to %d", ErrConfig, c.BlockSize,
			MinBlockSize, MaxBlockSize)
	case c.QPs < 1 || c.QPs > MaxQPs:
		return fmt.Errorf("%w: %d data QPs: choose 1 to %d", ErrConfig, c.QPs, MaxQPs)
	case c.SourceBlocks < 1 || c.SourceBlocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks of the source: choose 1 to %d", ErrConfig, c.SourceBlocks,
			MaxBlocks)
	case c.QPDepth < 1:
		return fmt.Errorf("%w: %d WRITEs in a data QP: choose 1 or more", ErrConfig, c.QPDepth)
	case c.Sessions < 1 || c.Sessions > MaxSessions:
		return fmt.Errorf("%w: %d sessions: choose 1 to %d", ErrConfig, c.Sessions, MaxSessions)
	case c.Silence < 0:
		return fmt.Errorf("%w: Silence is negative", ErrConfig)
	}
	return nil
}

// Pool is the memory of a sink. Block i begins at Addr + i*Stride with its header.
type Pool struct {
	Addr   uint64
	Stride uint64
	Key    uint32 // R_Key
	Blocks int
}

// ActionKind is the kind of an Action.
type ActionKind uint8

const (
	// DoControl: send Msg on the control QP and call ControlDone when that has completed.
	DoControl ActionKind = iota
	// DoWrite: post an RDMA WRITE of Len bytes, the header and payload of Block, on data QP QP to
	// Addr and Key, with the immediate Imm if WithImm. Call Posted with the result at once, and
	// WriteDone or QPFailed later.
	DoWrite
	// DoRead: copy the header of block Block of the sink, and call Arrived with Imm, length 0 and
	// the copy.
	DoRead
	// DoCloseQP: put data QP QP into the error state, process what it has received, report its
	// WRITEs by QPFailed, and call QPClosed.
	DoCloseQP
)

// Action is something for the driver to do. Its kind tells which fields are set.
type Action struct {
	Kind    ActionKind
	Msg     []byte // valid until the next call of Poll
	Block   int
	QP      int
	Addr    uint64
	Key     uint32
	Len     uint32
	Imm     uint32
	WithImm bool
}

// Changes tells the driver which calls may now have another result.
type Changes uint8

const (
	FreeChanged     Changes = 1 << iota // GetFree
	ReadyChanged                        // GetReady
	MessageChanged                      // NextMessage
	SpaceChanged                        // SendMessage
	SessionsChanged                     // Open, Outgoing.Done, Finished
	EndChanged                          // Err, PeerFinished
)

// Counters are plain numbers.
type Counters struct {
	// Source.
	BlocksSent  uint64 `json:"blocks_sent"` // WRITEs that have completed
	BytesSent   uint64 `json:"bytes_sent"`  // payload of these
	BlocksAgain uint64 `json:"blocks_sent_again"`
	Requests    uint64 `json:"requests"`
	Dry         uint64 `json:"dry"` // times a loaded block found no credit

	// Sink.
	BlocksReceived   uint64 `json:"blocks_received"`
	BytesReceived    uint64 `json:"bytes_received"`
	BlocksDropped    uint64 `json:"blocks_dropped"` // of aborted sessions
	Grants           uint64 `json:"grants"`
	RequestsReceived uint64 `json:"requests_received"`

	ControlSent     uint64 `json:"control_sent"`
	ControlReceived uint64 `json:"control_received"`
	QPsFailed       uint64 `json:"qps_failed"`
}
