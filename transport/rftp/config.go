package rftp

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp/core"
)

// Limits of this package.
const (
	MaxQPs       = core.MaxQPs       // data QPs of a connection
	MaxBlockSize = core.MaxBlockSize // bytes of payload of a block
	MaxBlocks    = 1 << 14           // blocks of a pool
	MaxPool      = 1 << 36           // bytes of a pool
	MaxSessions  = core.MaxSessions  // sessions open at a time, in one direction
	MaxParams    = core.MaxParams    // bytes of parameters of a session
	MaxMessage   = core.MaxMessage   // bytes of a message
	MaxText      = core.MaxText      // bytes of a reason; longer ones are cut
	MaxClass     = roce.NumClasses - 2

	// Align is the alignment of the payload of a block in memory, for direct I/O.
	Align = 4096
)

// Defaults of Config.
const (
	DefaultBlockSize = 256 << 10
	DefaultPool      = 64 << 20
	DefaultSessions  = core.DefaultSessions
	DefaultSilence   = time.Duration(core.DefaultSilence)
)

// Mode is how the sink grants its blocks, and how it learns that one has arrived.
type Mode = core.Mode

// The modes of a connection. Proactive is the default; the others are for comparison.
const (
	Proactive = core.Proactive
	Paper     = core.Paper
	OnDemand  = core.OnDemand
)

// AbortError is the reason for which the peer ended a session or the connection.
type AbortError = core.AbortError

// Counters are the counters of a connection.
type Counters = core.Counters

// Errors of this package. They are wrapped with details and advice.
var (
	// ErrConfig means that a field of a configuration is out of range.
	ErrConfig = core.ErrConfig
	// ErrPeer means that the peer violated the protocol, or does not speak it.
	ErrPeer = core.ErrPeer
	// ErrSilent means that nothing came from the peer for the time of Config.Silence.
	ErrSilent = core.ErrSilent
	// ErrLost means that the control QP or the last data QP failed, or that a data QP was refused.
	ErrLost = core.ErrLost
	// ErrPeerClosed means that the peer has closed the connection.
	ErrPeerClosed = core.ErrClosed
	// ErrEnded means that the session has ended.
	ErrEnded = core.ErrEnded
	// ErrBlock means that the caller does not have the block.
	ErrBlock = core.ErrBlock
	// ErrLength means that something is longer than the protocol allows.
	ErrLength = core.ErrLength
	// ErrClosed means that this side has closed the connection.
	ErrClosed = errors.New("rftp: closed")
	// ErrMismatch means that both sides' limits exclude each other. The error is a *MismatchError.
	ErrMismatch = errors.New("rftp: the sides do not agree")
	// ErrTooMany means that the listener has too many connections.
	ErrTooMany = errors.New("rftp: too many connections")
)

// Config describes one side of a connection. The zero value suits most programs.
type Config struct {
	// BlockSize is the most payload of a block in bytes, and MinBlockSize the least that this side
	// accepts. The smaller BlockSize of both sides applies. 0: DefaultBlockSize, and a page.
	BlockSize, MinBlockSize int
	// DataQPs is the largest number of data QPs, and MinDataQPs the smallest that this side
	// accepts. The smaller DataQPs of both sides applies. 0: one.
	DataQPs, MinDataQPs int

	// Pool is the memory for blocks from the peer in bytes, and SourcePool for blocks to it. Each
	// has at most MaxBlocks blocks. A pool of twice the bandwidth-delay product keeps a long path
	// full. 0: DefaultPool. Memory is allocated and registered once, when it is first used.
	Pool, SourcePool int
	// Hold makes the peer wait for memory until Conn.Grant is called. Use it to authenticate peers
	// first, and if this side receives no blocks.
	Hold bool

	// Sessions is how many sessions may be open at a time, in each direction. With 1, a session may
	// use the whole pool. 0: DefaultSessions.
	Sessions int
	// Rate limits the payload that this side sends, in bytes per second. 0: no limit.
	Rate uint64
	// Mode must be the same on both sides.
	Mode Mode
	// Silence is how long the peer's program may be silent before the connection ends with
	// ErrSilent. 0: DefaultSilence.
	Silence time.Duration

	// Class is the traffic class of the data QPs, 0 to MaxClass. Packets of the control QP have the
	// DSCP of the next higher class. A side that accepts connections uses the peer's class.
	Class int
	// Prioritize gives the control QP the higher class in this device, too, and not only in the
	// network. The device then passes only few frames of blocks to the port at a time, so that a
	// control message need not wait for more (see docs/traffic-classes.md). That reduces the rate
	// on ports whose system calls limit it.
	Prioritize bool
	// Connect has the attributes of the QPs. Class replaces its Class.
	Connect roce.ConnectOptions

	// Drive makes the program's goroutines run the protocol and the device in the methods that
	// block, such as GetFree and GetReady (see roce.Device.Drive). Otherwise each block passes
	// through two more goroutines. Drive is faster if one goroutine calls such methods again and
	// again and does little with a block. It polls for up to a millisecond, but lets other threads
	// have its processor. While it does something else, the device rests, for up to some
	// milliseconds. If it stays away for longer or has nothing to do, other goroutines take over.
	// With Manual progress Drive has no effect.
	Drive bool

	// Clock returns the time in nanoseconds, which must not decrease: that of roce.Expert in
	// virtual time. Nil means the system's clock.
	Clock func() int64
	// Wait is that of roce.Expert, for a device in virtual time whose program calls methods that
	// block. Without it the program calls Conn.Progress.
	Wait func(ctx context.Context, ready func() bool) error
}

func (c *Config) check() error {
	setDefault(&c.BlockSize, DefaultBlockSize)
	setDefault(&c.MinBlockSize, min(c.BlockSize, Align))
	setDefault(&c.DataQPs, 1)
	setDefault(&c.MinDataQPs, 1)
	setDefault(&c.Pool, DefaultPool)
	setDefault(&c.SourcePool, DefaultPool)
	setDefault(&c.Sessions, DefaultSessions)
	if c.Silence == 0 {
		c.Silence = DefaultSilence
	}
	switch {
	case c.MinBlockSize < core.MinBlockSize || c.BlockSize > MaxBlockSize ||
		c.MinBlockSize > c.BlockSize:
		return fmt.Errorf("%w: BlockSize %d and MinBlockSize %d: choose %d to %d", ErrConfig,
			c.BlockSize, c.MinBlockSize, core.MinBlockSize, MaxBlockSize)
	case c.MinDataQPs < 1 || c.DataQPs > MaxQPs || c.MinDataQPs > c.DataQPs:
		return fmt.Errorf("%w: DataQPs %d and MinDataQPs %d: choose 1 to %d", ErrConfig, c.DataQPs,
			c.MinDataQPs, MaxQPs)
	case c.Pool < c.BlockSize || c.SourcePool < c.BlockSize || c.Pool > MaxPool ||
		c.SourcePool > MaxPool:
		return fmt.Errorf("%w: pools of %d and %d bytes: choose at least a block of %d and at "+
			"most %d", ErrConfig, c.Pool, c.SourcePool, c.BlockSize, MaxPool)
	case c.Sessions < 1 || c.Sessions > MaxSessions:
		return fmt.Errorf("%w: Sessions %d: choose 1 to %d", ErrConfig, c.Sessions, MaxSessions)
	case !c.Mode.Valid():
		return fmt.Errorf("%w: unknown Mode %d", ErrConfig, c.Mode)
	case c.Silence < 0:
		return fmt.Errorf("%w: Silence %v: choose a positive time", ErrConfig, c.Silence)
	case c.Class < 0 || c.Class > MaxClass:
		return fmt.Errorf("%w: Class %d: choose 0 to %d", ErrConfig, c.Class, MaxClass)
	}
	return nil
}

func setDefault(v *int, value int) {
	if *v == 0 {
		*v = value
	}
}

// ListenConfig describes the connections of a Listener.
type ListenConfig struct {
	Config
	// MaxConns is the largest number of connections that are open at a time, and MaxPeerConns of
	// those from one peer (an IPv4 address or IPv6 /64). 0: 64, and no limit.
	MaxConns, MaxPeerConns int
	// Peers restricts who may connect, and so does Permits, if set. Others get no answer.
	Peers   roce.PeerList
	Permits func(peer netip.Addr) bool
	// Refused, if set, is called for each request that is rejected or whose sender does not confirm
	// the connection. It may be called concurrently, and anybody can cause such requests.
	Refused func(peer netip.AddrPort, err error)
}

// defaultMaxConns is the default of ListenConfig.MaxConns.
const defaultMaxConns = 64

func (c *ListenConfig) check() error {
	setDefault(&c.MaxConns, defaultMaxConns)
	if c.MaxConns < 0 || c.MaxPeerConns < 0 {
		return fmt.Errorf("%w: MaxConns %d and MaxPeerConns %d: choose positive numbers", ErrConfig,
			c.MaxConns, c.MaxPeerConns)
	}
	return c.Config.check()
}

// stride is the distance between two blocks in memory: the header ends at a multiple of Align.
func stride(size int) int { return Align + (size+Align-1)/Align*Align }

// blocksOf returns how many blocks of a size a pool of the given bytes has.
func blocksOf(pool, size int) int { return max(1, min(pool/size, MaxBlocks)) }

// connect returns the options of a QP. Packets of the control QP have the marks of the next higher
// class, so that grants do not wait behind blocks in the network. With Prioritize they do not wait
// in this device either.
func (c *Conn) connect(control bool) roce.ConnectOptions {
	o := c.cfg.Connect
	if !control && c.mtu != 0 {
		o.MTU = c.mtu
	}
	if o.Class = c.class; c.class == 0 {
		o.Class = -1 // not the class of the device or of the peer
	}
	switch {
	case control && c.cfg.Prioritize:
		o.Class = c.class + 1
	case control && o.TrafficClass>>2 == 0:
		o.TrafficClass |= c.dev.ClassMap().DSCP[c.class+1] << 2
	}
	return o
}
