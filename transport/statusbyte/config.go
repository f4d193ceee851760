package statusbyte

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Limits of a Config.
const (
	// MaxBlocks is far below half the range of packet numbers, so their order is unambiguous.
	MaxBlocks = 4096
	// MaxBlockSize bounds the data in a block, in bytes.
	MaxBlockSize = 256 << 20
	// MaxMemory bounds all blocks of one side together, in bytes.
	MaxMemory = 4 << 30

	// MaxOffered bounds the memory, in bytes, that a sender allocates if the receiver determines
	// the number or the size of the blocks.
	MaxOffered = 1 << 30

	// MaxPause bounds Config.Spin and Config.Idle. A context that ends during a pause is noticed
	// after it.
	MaxPause = time.Second

	// DefaultBlocks and DefaultBlockSize replace zeros in a receiver's Config.
	DefaultBlocks    = 16
	DefaultBlockSize = 1 << 20

	defaultSpin = 20 * time.Microsecond
	defaultIdle = 50 * time.Microsecond
	maxDepth    = 2*MaxBlocks + 1
)

// Errors of this package. They are wrapped with advice.
var (
	// ErrConfig means that a Config field is out of range.
	ErrConfig = errors.New("statusbyte: configuration out of range")
	// ErrMismatch means that both sides were started with different sizes.
	ErrMismatch = errors.New("statusbyte: the two sides have different sizes")
	// ErrPeer means that the peer does not speak this protocol or sent impossible values.
	ErrPeer = errors.New("statusbyte: the peer does not speak status byte version 1")
	// ErrTooLong means that data does not fit into a block.
	ErrTooLong = errors.New("statusbyte: data longer than a block")
	// ErrBlock means that a Fill was sent or dropped before.
	ErrBlock = errors.New("statusbyte: the caller does not have the block")
	// ErrClosed means that the Sender or Receiver was closed.
	ErrClosed = errors.New("statusbyte: closed")
	// ErrBroken means that an operation failed and ended the connection.
	ErrBroken = errors.New("statusbyte: the connection broke")
)

// Config describes one side. Both sides need the same Blocks and BlockSize.
type Config struct {
	// Blocks is the number of blocks of each side. 0 means DefaultBlocks at a receiver and the
	// receiver's number at a sender.
	Blocks int
	// BlockSize is the number of data bytes in a block without its header. 0 has the same meaning
	// as in Blocks.
	BlockSize int
	// Devices are the device numbers that a receiver accepts; nil means all.
	Devices []uint8

	// SendDepth and CQDepth are the capacities of a sender's send queue (work requests) and
	// completion queue. 0 means enough for all blocks at once. The minimum is 2 and 1, which allows
	// one block at a time.
	SendDepth, CQDepth int

	// Spin is how long a wait polls before it sleeps. Negative means not at all. 0 means 20 us, but
	// not at all for a sender on a device with Auto progress, whose goroutine wakes waiters.
	Spin time.Duration
	// Idle is how long a receiver on a device with Auto progress sleeps between two scans of an
	// empty array, and the longest sleep of a sender between two READs that find no empty block. 0
	// means 50 us.
	Idle time.Duration

	// Connect has the connection's attributes.
	Connect roce.ConnectOptions
	// Peers restricts who may connect to a Listener, and so does Permits, if set. Others get no
	// answer.
	Peers   roce.PeerList
	Permits func(peer netip.Addr) bool
	// Refused, if set, is called for each request that a Listener rejects or whose sender does not
	// confirm the connection. It may be called concurrently, and anybody can cause such requests.
	Refused func(peer netip.AddrPort, err error)
}

// check returns ErrConfig for fields out of range. Zeros have been replaced.
func (c *Config) check() error {
	switch {
	case c.Blocks < 1 || c.Blocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks: choose 1 to %d", ErrConfig, c.Blocks, MaxBlocks)
	case c.BlockSize < 1 || c.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: blocks of %d bytes: choose 1 to %d", ErrConfig, c.BlockSize,
			MaxBlockSize)
	case c.Blocks*stride(c.BlockSize) > MaxMemory:
		return fmt.Errorf("%w: %d blocks of %d bytes take more than %d bytes: choose fewer or smaller blocks", ErrConfig, c.Blocks, c.BlockSize, MaxMemory)
	case c.SendDepth < 0 || c.SendDepth > maxDepth || c.CQDepth < 0 || c.CQDepth > maxDepth:
		return fmt.Errorf("%w: send queue depth %d, completion queue depth %d: choose 0 to %d",
			ErrConfig, c.SendDepth, c.CQDepth, maxDepth)
	case c.SendDepth > 0 && c.SendDepth < blockWRs:
		return fmt.Errorf("%w: send queue depth %d: a block takes %d work requests", ErrConfig,
			c.SendDepth, blockWRs)
	case c.Idle < 0 || c.Idle > MaxPause || c.Spin > MaxPause:
		return fmt.Errorf("%w: Spin is %v, Idle is %v: choose at most %v for each", ErrConfig,
			c.Spin, c.Idle, MaxPause)
	}
	return nil
}

func (c *Config) setDefaults() {
	if c.Spin == 0 {
		c.Spin = defaultSpin
	}
	if c.Idle == 0 {
		c.Idle = defaultIdle
	}
	if c.SendDepth == 0 {
		c.SendDepth = 2*c.Blocks + 1 // and one READ
	}
	if c.CQDepth == 0 {
		c.CQDepth = c.Blocks + 1 // and one READ
	}
}

// stride is the distance between two blocks in bytes.
func stride(size int) int { return blocks.Stride(HeaderLen + size) }

// arrayLen is the memory of n status bytes, rounded up to the words that the accessors read.
func arrayLen(n int) int { return (n + wordLen - 1) / wordLen * wordLen }

const wordLen = 8
