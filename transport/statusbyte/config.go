package statusbyte

import (
	"errors"
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/internal/ends"
)

// Bounds of a Config.
const (
	// MaxBlocks keeps packet numbers, of which half the range tells before from after, far from ambiguity.
	MaxBlocks = 4096
	// MaxBlockSize is how much data a block can hold, in bytes.
	MaxBlockSize = 256 << 20
	// MaxMemory bounds an end's blocks together, in bytes.
	MaxMemory = 4 << 30

	// MaxPause bounds Config.Spin and Config.Idle: meanwhile nobody looks whether a context has ended.
	MaxPause = time.Second

	// DefaultBlocks and DefaultBlockSize are what zeros in a receiver's Config stand for.
	DefaultBlocks    = 16
	DefaultBlockSize = 1 << 20

	defaultSpin = 20 * time.Microsecond
	defaultIdle = 50 * time.Microsecond
	maxDepth    = 2*MaxBlocks + 1
)

// Errors of this package, wrapped with what to do next.
var (
	// ErrConfig: a Config that cannot be.
	ErrConfig = errors.New("statusbyte: configuration out of range")
	// ErrMismatch: the two ends were started with different sizes.
	ErrMismatch = errors.New("statusbyte: the two ends do not fit")
	// ErrPeer: the other end does not speak this protocol, or says what cannot be.
	ErrPeer = errors.New("statusbyte: the peer does not speak status byte version 1")
	// ErrTooLong: data that no block can hold.
	ErrTooLong = errors.New("statusbyte: data longer than a block")
	// ErrClosed: the Sender or Receiver was closed.
	ErrClosed = errors.New("statusbyte: closed")
	// ErrBroken: an operation failed, and with it the connection.
	ErrBroken = errors.New("statusbyte: the connection broke")
)

// Config says what an end has. Both ends need the same Blocks and BlockSize.
type Config struct {
	// Blocks is N: how many blocks each end has. 0 stands for DefaultBlocks at a receiver, for the receiver's number at
	// a sender.
	Blocks int
	// BlockSize is how many bytes of data a block holds, its header not counted. 0 as with Blocks.
	BlockSize int
	// Devices are the device numbers that a receiver takes packets of; nil: all.
	Devices []uint8

	// SendDepth and CQDepth are the sizes of a sender's send queue (work requests) and completion queue. 0: room for
	// all blocks at once. The least that works is 2 and 1: one block at a time.
	SendDepth, CQDepth int

	// Spin is how long a wait looks again and again before it sleeps; negative: not at all; 0: 20 us, but not at all at a sender whose
	// device has Auto progress: its thread wakes who waits for a completion.
	Spin time.Duration
	// Idle is how long a receiver on a device with Auto progress sleeps between two looks at an empty array, and the longest
	// that a sender sleeps between two READs that find nothing empty; 0: 50 us.
	Idle time.Duration

	// Connect are the connection's attributes.
	Connect roce.ConnectOptions
}

// check refuses what cannot be. Zeros have been replaced.
func (c *Config) check() error {
	switch {
	case c.Blocks < 1 || c.Blocks > MaxBlocks:
		return fmt.Errorf("%w: %d blocks: choose 1 to %d", ErrConfig, c.Blocks, MaxBlocks)
	case c.BlockSize < 1 || c.BlockSize > MaxBlockSize:
		return fmt.Errorf("%w: blocks of %d bytes: choose 1 to %d", ErrConfig, c.BlockSize, MaxBlockSize)
	case c.Blocks*stride(c.BlockSize) > MaxMemory:
		return fmt.Errorf("%w: %d blocks of %d bytes take more than %d bytes: choose fewer or smaller ones", ErrConfig, c.Blocks, c.BlockSize, MaxMemory)
	case c.SendDepth < 0 || c.SendDepth > maxDepth || c.CQDepth < 0 || c.CQDepth > maxDepth:
		return fmt.Errorf("%w: a send queue of %d, a completion queue of %d: choose 0 to %d", ErrConfig, c.SendDepth, c.CQDepth, maxDepth)
	case c.Idle < 0 || c.Idle > MaxPause || c.Spin > MaxPause:
		return fmt.Errorf("%w: %v of looking again, sleeps of %v: choose at most %v of each", ErrConfig, c.Spin, c.Idle, MaxPause)
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
		c.SendDepth = 2*c.Blocks + 1 // a READ beside them
	}
	if c.CQDepth == 0 {
		c.CQDepth = c.Blocks + 1 // a READ beside them
	}
}

// stride is the distance between two blocks.
func stride(size int) int { return ends.Stride(HeaderLen + size) }

// arrayLen is the memory of n status bytes: whole words, which the accessors read.
func arrayLen(n int) int { return (n + wordLen - 1) / wordLen * wordLen }

const wordLen = 8
