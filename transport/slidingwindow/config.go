package slidingwindow

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/blocks"
)

// Limits of a Config. A block's index and length share the 32 bits of an immediate.
const (
	placeBits  = 6
	lengthBits = 32 - placeBits

	// MaxBlocks bounds the number of blocks.
	MaxBlocks = 1 << placeBits
	// MaxBlockSize bounds the length of a block in bytes.
	MaxBlockSize = 1<<lengthBits - 1

	// MaxSpin bounds Config.Spin. A context that ends meanwhile is noticed after it.
	MaxSpin = time.Second

	defaultSpin = 20 * time.Microsecond
)

// Errors of this package. They are wrapped with advice.
var (
	// ErrConfig means that a Config field is out of range.
	ErrConfig = errors.New("slidingwindow: configuration out of range")
	// ErrMismatch means that both sides were started with different sizes.
	ErrMismatch = errors.New("slidingwindow: the two sides have different sizes")
	// ErrPeer means that the peer does not speak this protocol or violates it.
	ErrPeer = errors.New("slidingwindow: the peer does not speak sliding window version 1 or violates it")
	// ErrTooLong means that data does not fit into a block.
	ErrTooLong = errors.New("slidingwindow: data longer than a block")
	// ErrClosed means that the Sender or Receiver was closed.
	ErrClosed = errors.New("slidingwindow: closed")
	// ErrBroken means that an operation failed and ended the connection.
	ErrBroken = errors.New("slidingwindow: the connection broke")
)

// Config describes one side. Both sides need the same Blocks and BlockSize.
type Config struct {
	Blocks    int // N: 1 to MaxBlocks
	BlockSize int // bytes: 1 to MaxBlockSize

	// Capacities of the queues, in work requests and completions. 0 means Blocks, with which no
	// call waits for a queue.
	SendDepth, SendCQ int // sender: WRITEs; receiver: ACKs
	RecvDepth, RecvCQ int // sender: ACKs; receiver: WRITEs with immediate

	// Spin is how long a wait polls before it sleeps, at most MaxSpin. 0 means 20 us, negative not
	// at all.
	Spin time.Duration
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

func (c *Config) check() error {
	switch {
	case c.Blocks < 1 || c.Blocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks: choose 1 to %d", ErrConfig, c.Blocks, MaxBlocks)
	case c.BlockSize < 1 || c.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: blocks of %d bytes: choose 1 to %d", ErrConfig, c.BlockSize,
			MaxBlockSize)
	case c.Spin > MaxSpin:
		return fmt.Errorf("%w: Spin is %v: choose at most %v", ErrConfig, c.Spin, MaxSpin)
	}
	for _, n := range []int{c.SendDepth, c.SendCQ, c.RecvDepth, c.RecvCQ} {
		if n < 0 || n > maxDepth {
			return fmt.Errorf("%w: a queue of %d entries: choose 0 to %d", ErrConfig, n, maxDepth)
		}
	}
	return nil
}

const maxDepth = 4096

func (c *Config) setDefaults() {
	if c.Spin == 0 {
		c.Spin = defaultSpin
	}
	// There are never more than Blocks ACKs or blocks outstanding.
	for _, n := range []*int{&c.SendDepth, &c.SendCQ, &c.RecvDepth, &c.RecvCQ} {
		if *n == 0 {
			*n = c.Blocks
		}
	}
}

func (c *Config) sizes() blocks.Sizes { return blocks.Sizes{Blocks: c.Blocks, Size: c.BlockSize} }

// stride is the distance between two blocks in bytes.
func stride(size int) int { return blocks.Stride(size) }

// immediate encodes a block's index and length.
func immediate(place, length int) uint32 { return uint32(place)<<lengthBits | uint32(length) }

func placeOf(imm uint32) int  { return int(imm >> lengthBits) }
func lengthOf(imm uint32) int { return int(imm & (1<<lengthBits - 1)) }
