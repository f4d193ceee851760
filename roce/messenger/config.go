package messenger

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Defaults and limits of Config.
const (
	DefaultMaxMessage = 8 << 10
	MaxMaxMessage     = 16 << 20 // limit of MaxMessage, in bytes
	DefaultDepth      = 128
	MaxDepth          = 4096 // limit of Depth and Calls
	DefaultWorkers    = 1
	MaxWorkers        = 4096
	DefaultLinger     = time.Second
	DefaultKeepAlive  = 5 * time.Second
)

// Config describes one side of a connection. The zero value suits most programs. The two sides may
// have different values.
//
// A connection has Depth + Calls + 24 buffers for receiving and Depth for sending, of MaxMessage
// bytes each: 3.3 MiB with the defaults.
type Config struct {
	// MaxMessage is the largest message, request or answer, in bytes; the smaller value of the two
	// sides applies to both. Longer ones fail with ErrTooLarge. It is also the size of the parts
	// into which ReadAt and WriteAt split longer transfers. 0: DefaultMaxMessage.
	MaxMessage int
	// Depth is how many messages and requests the peer can send before the program has released
	// them, and how many messages and one-sided operations of this side can be in flight.
	// 0: DefaultDepth.
	Depth int
	// Calls is how many calls of this side can be outstanding; further ones wait. A call ends when
	// its answer is released, or if it was canceled when its answer arrives. 0: Depth.
	Calls int
	// Workers is how many requests Handle serves at the same time. With 1, the default, the
	// requests of a connection are answered in their order, without a switch of goroutines, and
	// the end of a caller's context does not reach its Handler. Use more if Handlers wait for
	// something.
	Workers int
	// Linger limits how long Close waits until the peer has acknowledged what was sent.
	// 0: DefaultLinger; negative: Close does not wait.
	Linger time.Duration

	// PD is the protection domain of the connection, for regions that peers of several connections
	// use. Nil: each connection has its own, which is closed with it.
	PD *roce.PD
	// QP is a template of the queue pair, for fields such as Class, Rate and GIDIndex. The CQs, the
	// depths and limits of queues, Type and SRQ are those of the package.
	QP roce.QPConfig
	// Connect are options of the connection. Its KeepAlive is DefaultKeepAlive if 0.
	Connect roce.ConnectOptions
	// Go starts a goroutine. Nil: the go statement. In virtual time, Serve, and Handle with several
	// Workers, need it, for example the method Go of loopback.Sim.
	Go func(func())
}

// withDefaults returns c with its defaults, or an error that wraps roce.ErrInvalid.
func (c Config) withDefaults() (Config, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.MaxMessage, DefaultMaxMessage)
	def(&c.Depth, DefaultDepth)
	def(&c.Calls, c.Depth)
	def(&c.Workers, DefaultWorkers)
	for _, f := range []struct {
		name   string
		v, max int
	}{
		{"MaxMessage", c.MaxMessage, MaxMaxMessage}, {"Depth", c.Depth, MaxDepth},
		{"Calls", c.Calls, MaxDepth}, {"Workers", c.Workers, MaxWorkers},
	} {
		if f.v < 1 || f.v > f.max {
			return c, fmt.Errorf("%w: Config.%s is %d: choose 1 to %d", roce.ErrInvalid, f.name,
				f.v,
				f.max)
		}
	}
	if c.Linger == 0 {
		c.Linger = DefaultLinger
	}
	if c.Connect.KeepAlive == 0 {
		c.Connect.KeepAlive = DefaultKeepAlive
	}
	return c, nil
}

// start starts a goroutine.
func (c *Config) start(f func()) {
	if c.Go == nil {
		go f()
		return
	}
	c.Go(f)
}

// needsGo is the error of what starts goroutines in virtual time without Config.Go.
func needsGo() error {
	return fmt.Errorf("%w: set Config.Go in virtual time, for example to loopback.Sim.Go",
		roce.ErrInvalid)
}

// qpConfig returns the configuration of the queue pair.
func (c *Config) qpConfig() roce.QPConfig {
	q := c.QP
	q.Type, q.SRQ, q.SignalAll = roce.RC, nil, false
	q.SendCQ, q.RecvCQ = nil, nil // the QP gets one of its own
	q.SendDepth, q.RecvDepth = c.Depth+controlSlots, c.receives()
	q.MaxSendSGE, q.MaxRecvSGE, q.MaxInline = 1, 1, maxInline
	return q
}

// receives returns the number of receive buffers.
func (c *Config) receives() int { return c.Depth + c.Calls + controlBuffers }

const (
	// controlSlots is the number of entries of the send queue for messages that only carry credits.
	controlSlots = 8
	// controlBuffers is the number of receive buffers for such messages of the peer.
	controlBuffers = 24
	// maxInline is the length in bytes up to which a message is copied into its work request.
	maxInline = 64
)
