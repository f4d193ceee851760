package slidingwindow

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// Bounds of a Config: place and length of a block share the 32 bits of an immediate.
const (
	placeBits  = 6
	lengthBits = 32 - placeBits

	// MaxBlocks is how many blocks there can be.
	MaxBlocks = 1 << placeBits
	// MaxBlockSize is how long a block can be, in bytes.
	MaxBlockSize = 1<<lengthBits - 1

	// MaxSpin bounds Config.Spin: meanwhile nobody looks whether a context has ended.
	MaxSpin = time.Second

	defaultSpin = 20 * time.Microsecond
)

// Errors of this package, wrapped with what to do next.
var (
	// ErrConfig: a Config that cannot be.
	ErrConfig = errors.New("slidingwindow: configuration out of range")
	// ErrMismatch: the two ends were started with different sizes.
	ErrMismatch = errors.New("slidingwindow: the two ends do not fit")
	// ErrPeer: the other end does not speak this protocol, or breaks it.
	ErrPeer = errors.New("slidingwindow: the peer does not keep to sliding window version 1")
	// ErrTooLong: data that no block can hold.
	ErrTooLong = errors.New("slidingwindow: data longer than a block")
	// ErrClosed: the Sender or Receiver was closed.
	ErrClosed = errors.New("slidingwindow: closed")
	// ErrBroken: an operation failed, and with it the connection.
	ErrBroken = errors.New("slidingwindow: the connection broke")
)

// Config says what an end has. Both ends need the same Blocks and BlockSize.
type Config struct {
	Blocks    int // N: 1 to MaxBlocks
	BlockSize int // bytes: 1 to MaxBlockSize

	// The sizes of the queues: work requests, and completions. 0 stands for Blocks, with which nobody waits for a queue.
	SendDepth, SendCQ int // sender: WRITEs; receiver: ACKs
	RecvDepth, RecvCQ int // sender: ACKs; receiver: WRITEs with immediate

	// Spin is how long a wait looks again and again before it sleeps, at most MaxSpin; 0: 20 us, negative: not at all.
	Spin time.Duration
	// Connect are the connection's attributes.
	Connect roce.ConnectOptions
}

func (c *Config) check() error {
	switch {
	case c.Blocks < 1 || c.Blocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks: choose 1 to %d", ErrConfig, c.Blocks, MaxBlocks)
	case c.BlockSize < 1 || c.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: blocks of %d bytes: choose 1 to %d", ErrConfig, c.BlockSize, MaxBlockSize)
	case c.Spin > MaxSpin:
		return fmt.Errorf("%w: waits that look again for %v: choose at most %v", ErrConfig, c.Spin, MaxSpin)
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
	// There are never more ACKs under way than blocks, nor more blocks than N.
	for _, n := range []*int{&c.SendDepth, &c.SendCQ, &c.RecvDepth, &c.RecvCQ} {
		if *n == 0 {
			*n = c.Blocks
		}
	}
}

func (c *Config) sizes() ends.Sizes { return ends.Sizes{Blocks: c.Blocks, Size: c.BlockSize} }

// stride is the distance between two blocks.
func stride(size int) int { return ends.Stride(size) }

// immediate names a block's place and length.
func immediate(place, length int) uint32 { return uint32(place)<<lengthBits | uint32(length) }

func placeOf(imm uint32) int  { return int(imm >> lengthBits) }
func lengthOf(imm uint32) int { return int(imm & (1<<lengthBits - 1)) }
