package indirect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// The vocabulary of the state machine is also that of this package's users.
type (
	// Kind is the type of a transfer.
	Kind = core.Kind
	// TID is the ID of a transfer on its connection.
	TID = core.TID
	// Status is how a transfer ended.
	Status = core.Status
)

// The types of transfers, and how they end.
const (
	Write = core.Write
	Read  = core.Read

	StatusOK       = core.StatusOK
	StatusRefused  = core.StatusRefused
	StatusNoAnswer = core.StatusNoAnswer
	StatusLost     = core.StatusLost
)

// Errors. Those of package roce are wrapped. ErrFull, ErrLength, ErrTooLarge, ErrProtocol,
// ErrSilent and ErrLost come from the state machine.
var (
	ErrConfig   = core.ErrConfig
	ErrFull     = core.ErrFull
	ErrLength   = core.ErrLength
	ErrTooLarge = core.ErrTooLarge
	ErrProtocol = core.ErrProtocol
	ErrSilent   = core.ErrSilent
	ErrLost     = core.ErrLost

	// ErrIndirectBuffer means that the indirect buffer cannot hold one transfer.
	ErrIndirectBuffer = errors.New("indirect: the indirect buffer is smaller than one transfer: raise IndirectBuffer, or lower MaxTransfer")
	// ErrPeer means that the peer does not speak this protocol.
	ErrPeer = errors.New("indirect: the peer does not speak the indirect protocol, or another version of it")
	// ErrMismatch means that both sides are configured differently.
	ErrMismatch = errors.New("indirect: the sides are configured differently: give both the same Entries and Segment")
	// ErrTooManyConns means that Config.MaxConns is reached.
	ErrTooManyConns = errors.New("indirect: too many connections: close one or raise MaxConns")
	// ErrTooManyPeerConns means that a peer has Config.MaxPeerConns connections.
	ErrTooManyPeerConns = errors.New("indirect: too many connections from one peer: raise MaxPeerConns if that is intended")
	// ErrTransfer means that a transfer failed. It is wrapped with the cause.
	ErrTransfer = errors.New("indirect: transfer failed")
	// ErrClosed means that the Endpoint or the connection was closed.
	ErrClosed = errors.New("indirect: closed")
	// ErrMemory means that the local memory of a transfer is not inside its region, or that the
	// region is not in the Endpoint's PD.
	ErrMemory = errors.New("indirect: the range is not inside a memory region of the Endpoint's PD")
)

// Defaults and limits of Config.
const (
	DefaultMaxTransfer    = 128 << 10
	DefaultIndirectBuffer = 4 << 20
	DefaultSlots          = 8
	DefaultSegment        = 16 << 10
	DefaultMaxConns       = 16
	maxMaxConns           = 256
	defaultSpin           = 50 * time.Microsecond
)

// Config describes an Endpoint. The zero value is usable but refuses all transfers that peers
// request.
type Config struct {
	// Host provides the memory that peers may write and read. Nil refuses every request.
	Host Host

	// Traditional disables the paper's method on this side: transfers wait for their valid answers.
	Traditional bool

	// bytes per slot of the indirect buffer: the largest transfer that peers may send indirectly;
	// 0: 128 KiB
	MaxTransfer int
	// bytes reserved, for all connections, for data whose destination is not ready; 0: 4 MiB;
	// negative: none
	IndirectBuffer int
	// per connection, 1 to 256; 0: 8. If IndirectBuffer is used up, further connections get fewer
	// or none
	Slots   int
	Segment int // bytes per data message, the same on both sides; 0: 16 KiB
	// outstanding transfers per direction of a connection, the same on both sides: a power of two
	// up to 256; 0: 16
	Entries  int
	MaxConns int // 0: 16; at most 256

	// before a request is repeated or a READ's data is sent unconfirmed; 0: 2 ms
	Timeout  time.Duration
	Patience time.Duration // before a transfer without a valid answer is abandoned; 0: 10 s
	// before an initiator with unfinished transfers that sends nothing counts as dead and a
	// responder's NIC is probed; the same on both sides; 0: 20 s
	Silence time.Duration

	// RC has the attributes of the connections that carry data. Control messages have its traffic
	// class, too. The peer adopts the class only for data, so both sides should choose it.
	RC roce.ConnectOptions
	// Peers restricts who may connect to a Listener; others get no answer.
	Peers roce.PeerList
	// MaxPeerConns bounds the connections that Listeners accept from one peer: an IPv4 address or
	// an IPv6 /64 prefix. 0 means half of MaxConns, at least 1; at most MaxConns.
	MaxPeerConns int
	// Refused, if set, is called for each request that a Listener rejects or whose sender does not
	// confirm the connection. It may be called concurrently, and anybody can cause such requests.
	Refused func(peer netip.AddrPort, err error)

	Faults Faults

	// Rand replaces the random source of tokens, Q_Keys and first TIDs, for tests that must replay.
	Rand func() uint64
	// Clock replaces the monotonic clock, in nanoseconds, for devices in virtual time
	// (roce.Expert.Clock).
	Clock func() int64
}

// Faults injects failures. The same seed gives the same failures.
type Faults struct {
	Seed uint64
	// FailedRegistration is the probability that a request for registration fails regardless of
	// what Host returns (the paper's FRP). Each attempt of each TID is drawn independently of the
	// order of events.
	FailedRegistration float64
}

// fails draws the outcome of an attempt.
func (f *Faults) fails(tid TID, attempt uint32) bool {
	if f.FailedRegistration == 0 {
		return false
	}
	z := f.Seed*0xd1342543de82ef95 + uint64(tid)<<32 + uint64(attempt)
	for range 2 { // the mixing step of splitmix64
		z += 0x9e3779b97f4a7c15
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
	}
	return float64(z>>11)/(1<<53) < f.FailedRegistration
}

func (c *Config) check() error {
	for _, f := range []struct {
		name           string
		v              *int
		def, least, to int
	}{
		{"MaxTransfer", &c.MaxTransfer, DefaultMaxTransfer, 1, core.MaxLength},
		{"Slots", &c.Slots, DefaultSlots, 1, core.MaxSlots},
		{"Segment", &c.Segment, DefaultSegment, 1, core.MaxSegment},
		{"Entries", &c.Entries, core.DefaultEntries, 1, core.MaxEntries},
		{"MaxConns", &c.MaxConns, DefaultMaxConns, 1, maxMaxConns},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < f.least || *f.v > f.to {
			return fmt.Errorf("%w: %s is %d; give %d to %d", ErrConfig, f.name, *f.v, f.least, f.to)
		}
	}
	if c.Entries&(c.Entries-1) != 0 {
		return fmt.Errorf("%w: Entries is %d; give a power of two", ErrConfig, c.Entries)
	}
	if c.IndirectBuffer == 0 {
		c.IndirectBuffer = DefaultIndirectBuffer
	}
	if c.IndirectBuffer > 0 && c.IndirectBuffer < c.MaxTransfer {
		return fmt.Errorf("%w (%d bytes, transfers of up to %d)", ErrIndirectBuffer,
			c.IndirectBuffer, c.MaxTransfer)
	}
	if p := c.Faults.FailedRegistration; !(p >= 0 && p <= 1) {
		return fmt.Errorf("%w: FailedRegistration is %v; give a probability from 0 to 1", ErrConfig,
			p)
	}
	if c.Timeout < 0 || c.Patience < 0 || c.Silence < 0 {
		return fmt.Errorf("%w: a time is negative", ErrConfig)
	}
	if c.MaxPeerConns == 0 {
		c.MaxPeerConns = max(1, c.MaxConns/2)
	}
	if c.MaxPeerConns < 0 || c.MaxPeerConns > c.MaxConns {
		return fmt.Errorf("%w: MaxPeerConns is %d; give 0 to MaxConns (%d)", ErrConfig,
			c.MaxPeerConns, c.MaxConns)
	}
	if c.Rand == nil {
		c.Rand = rand.Uint64
	}
	if c.Clock == nil {
		start := time.Now()
		c.Clock = func() int64 { return 1 + int64(time.Since(start)) }
	}
	return nil
}
