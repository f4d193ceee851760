package flow

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/roce"
)

// Limits of this package.
const (
	// MaxSlots bounds the messages that a channel holds.
	MaxSlots = 64
	// MaxSize bounds the bytes of a message.
	MaxSize = 1 << 30
	// MaxMemory bounds the bytes of a channel.
	MaxMemory = 4 << 30
	// MaxClass is the highest traffic class; 0 is the lowest.
	MaxClass = 7
	// MaxInFlight bounds SchedulerConfig.InFlight.
	MaxInFlight = 16
	// MaxReaders bounds the readers of a channel.
	MaxReaders = 64

	// DefaultSlots and DefaultCompletions replace zeros.
	DefaultSlots       = 3
	DefaultCompletions = 4096
)

// Errors of this package. They are wrapped with details and advice.
var (
	// ErrConfig means that a field of a configuration is out of range.
	ErrConfig = errors.New("flow: configuration out of range")
	// ErrPeer means that the peer does not speak this protocol, or violates it.
	ErrPeer = errors.New("flow: the peer does not speak flow version 1, or violates it")
	// ErrTooLong means that a message does not fit into the slots of a channel.
	ErrTooLong = errors.New("flow: message too long")
	// ErrFull means that all slots of a channel are in use.
	ErrFull = errors.New("flow: the channel has no free slot")
	// ErrTooMany means that the layer has no capacity for another connection.
	ErrTooMany = errors.New("flow: too many connections")
	// ErrClosed means that the object was closed.
	ErrClosed = errors.New("flow: closed")
	// ErrBroken means that an operation failed and ended the connection.
	ErrBroken = errors.New("flow: the connection broke")
	// ErrBusy means that a scheduler or a reader uses the object.
	ErrBusy = errors.New("flow: in use")
	// ErrStale means that a message is older than SendConfig.MaxAge.
	ErrStale = errors.New("flow: message too old")
)

// LayerConfig describes a Layer. The zero value suits most programs.
type LayerConfig struct {
	// Completions is the capacity of the completion queue. Each Sender needs 80 entries and each
	// Receiver two for each slot; 0 means DefaultCompletions.
	Completions int
	// Clock returns the time in nanoseconds, which must not decrease: that of roce.Expert in
	// virtual time. Nil means the system's clock.
	Clock func() int64
	// Wait is that of roce.Expert, for a device in virtual time whose program calls methods that
	// block.
	Wait func(ctx context.Context, ready func() bool) error
}

// Overflow is what a channel does with a message when all slots are in use.
type Overflow uint8

const (
	// DropOldest gives up the oldest message that no reader holds, although not every reader has
	// read it. Readers count it as missed.
	DropOldest Overflow = iota
	// Refuse keeps all messages until they are read. The writer gets ErrFull, and a sender waits.
	Refuse
)

// ChannelConfig describes a Channel.
type ChannelConfig struct {
	Name     string
	Size     int // of the longest message, bytes
	Slots    int // messages that the channel holds; 0 means DefaultSlots
	Overflow Overflow
}

func (c *ChannelConfig) check() error {
	if c.Slots == 0 {
		c.Slots = DefaultSlots
	}
	switch {
	case c.Size < 1 || c.Size > MaxSize:
		return fmt.Errorf("%w: channel %q has messages of %d bytes: choose 1 to %d", ErrConfig,
			c.Name, c.Size, MaxSize)
	case c.Slots < 1 || c.Slots > MaxSlots:
		return fmt.Errorf("%w: channel %q has %d slots: choose 1 to %d", ErrConfig, c.Name,
			c.Slots, MaxSlots)
	case c.Overflow > Refuse:
		return fmt.Errorf("%w: channel %q: unknown overflow %d", ErrConfig, c.Name, c.Overflow)
	case c.memory() > MaxMemory:
		return fmt.Errorf("%w: channel %q takes %d bytes, at most %d are possible: choose fewer "+
			"slots", ErrConfig, c.Name, c.memory(), MaxMemory)
	}
	return nil
}

// memory is the size of the slots in bytes.
func (c *ChannelConfig) memory() int { return c.Slots * stride(c.Size) }

// SenderConfig describes a Sender.
type SenderConfig struct {
	Name string // for errors and reports
	// Class is the traffic class of the connection, 0 to MaxClass, in both directions: see
	// roce.PathOptions.
	Class int
	// Connect has the connection's attributes. Class replaces its Class and TrafficClass.
	Connect roce.ConnectOptions
}

func (c *SenderConfig) check() error {
	if c.Class < 0 || c.Class > MaxClass {
		return fmt.Errorf("%w: sender %q has the class %d: choose 0 to %d", ErrConfig, c.Name,
			c.Class, MaxClass)
	}
	return nil
}

// ReceiverConfig describes the receivers of a Listener.
type ReceiverConfig struct {
	// Channel is where messages arrive. A sender must not have longer messages.
	Channel ChannelConfig
	// Connect has the connection's attributes. The sender's class replaces its Class and
	// TrafficClass.
	Connect roce.ConnectOptions
	// Peers restricts who may connect to a Listener, and so does Permits, if set. Others get no
	// answer.
	Peers   roce.PeerList
	Permits func(peer netip.Addr) bool
	// Refused, if set, is called for each request that a Listener rejects or whose sender does not
	// confirm the connection. It may be called concurrently, and anybody can cause such requests.
	Refused func(peer netip.AddrPort, err error)
}

// classOption returns a class as roce.PathOptions.Class, where 0 means the default.
func classOption(class int) int {
	if class == 0 {
		return -1
	}
	return class
}

const (
	// headerLen is the header of a message in a receiver's slot, in front of the data.
	headerLen = 32
	// dataOffset is where the data of a slot begins, so that it is aligned.
	dataOffset = 64
)

// stride is the distance between two slots for size bytes.
func stride(size int) int { return dataOffset + (size+63)/64*64 }
