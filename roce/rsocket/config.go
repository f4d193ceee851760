package rsocket

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/roce/rsocket/core"
)

// Config holds the options of a connection or of a listener's connections. The zero value suits
// most programs.
type Config struct {
	// ReadBuffer is the size in bytes of the memory that the peer writes its data into, MinBuffer
	// to MaxBuffer; 0: DefaultBuffer. The peer may send one half of it without an answer of this
	// side's program, and the other half while the program reads. A large one keeps the link busy
	// while a program waits for a processor. With many connections a smaller one saves memory.
	ReadBuffer int
	// WriteBuffer is the size in bytes of the memory from which the device sends, MinBuffer to
	// MaxBuffer; 0: DefaultBuffer. It limits the bytes that the peer has not acknowledged.
	WriteBuffer int
	// Messages is how many writes of the peer this side holds that the program has not read, 16 to
	// 65,534; 0: 384. Many small writes need more messages than bytes.
	Messages int
	// Mappings is the number of memory areas that the peer may open with Conn.Map, at most 128;
	// 0: none.
	Mappings int

	// Linger is how long Conn.Close waits for the peer's acknowledgment of what was written;
	// 0: DefaultLinger; negative: Close does not wait, and unacknowledged data is lost.
	Linger time.Duration

	// GIDIndex is the index in roce.Device.GIDs of the local address of Dial; nil: the route
	// selects it.
	GIDIndex *int
	// Connect holds further options of the connection, such as KeepAlive, Class and MTU. Access is
	// not used: the peer may only WRITE, and only into memory of this connection.
	Connect roce.ConnectOptions

	// Peers and Admit are for Listen: see roce.ListenOptions. Admit is called in a goroutine of the
	// Listener.
	Peers roce.PeerList
	Admit func(*roce.Request) error
	// MaxPending is for Listen: how many connections may be in progress or wait for Accept. While
	// there are as many, further requests wait. A request that its peer has not confirmed for 1 s
	// is then replaced, first one of the address (IPv4) or /64 (IPv6) that has the most; as in
	// roce.ServeConfig, a flood of forged requests shortens the 1 s to 50 ms. The newer requests of
	// the same address let the older ones wait longer, up to 4 s, if its connections take so long.
	// 0: 128, or fewer if their buffers would exceed 256 MiB, but at least 32.
	MaxPending int
	// Refused, if not nil, is called for each request for which Listener could not establish a
	// connection. It may be called concurrently.
	Refused func(peer netip.AddrPort, err error)
}

// Limits and defaults of Config.
const (
	MinBuffer       = 4 << 10
	MaxBuffer       = 1 << 30
	DefaultBuffer   = 1920 << 10 // AllocMR asks for huge pages from 2 MiB
	DefaultLinger   = 5 * time.Second
	minMessages     = 16
	defaultMessages = 384
	maxMaxPending   = 1 << 16

	// pendingMemory limits the default of MaxPending, in bytes: forged requests can hold it.
	pendingMemory = 256 << 20
	// handshake is how long a peer may take to confirm a connection.
	handshake = 10 * time.Second
)

var (
	// errConfig is wrapped by errors about Config.
	errConfig = errors.New("rsocket: invalid Config")

	errNilDevice = fmt.Errorf("%w: the Device is nil", roce.ErrInvalid)
)

// complete returns c with defaults in place of zeros.
func (c Config) complete() (Config, error) {
	for _, f := range []struct {
		v             *int
		def, min, max int
		name          string
	}{
		{&c.ReadBuffer, DefaultBuffer, MinBuffer, MaxBuffer, "ReadBuffer"},
		{&c.WriteBuffer, DefaultBuffer, MinBuffer, MaxBuffer, "WriteBuffer"},
		{&c.Messages, defaultMessages, minMessages, core.MaxCredits, "Messages"},
		{&c.Mappings, 0, 0, core.MaxMaps, "Mappings"},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < f.min || *f.v > f.max {
			return c, fmt.Errorf("%w: %s is %d: choose %d to %d", errConfig, f.name, *f.v, f.min,
				f.max)
		}
	}
	if c.MaxPending == 0 {
		c.MaxPending = min(max(pendingMemory/(c.ReadBuffer+c.WriteBuffer), 32), 128)
	}
	if c.MaxPending < 1 || c.MaxPending > maxMaxPending {
		return c, fmt.Errorf("%w: MaxPending is %d: choose 1 to %d", errConfig, c.MaxPending,
			maxMaxPending)
	}
	c.ReadBuffer &^= 63 // two halves of whole cache lines
	if c.Linger == 0 {
		c.Linger = DefaultLinger
	}
	c.Connect.Access = roce.RemoteWrite
	return c, nil
}
