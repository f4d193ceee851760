package pingpong

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// Kind names one of the example programs.
type Kind string

// The kinds. All but SRQ use one queue pair.
const (
	RC  Kind = "rc"  // ibv_rc_pingpong
	UC  Kind = "uc"  // ibv_uc_pingpong
	UD  Kind = "ud"  // ibv_ud_pingpong
	SRQ Kind = "srq" // ibv_srq_pingpong: RC queue pairs with a shared receive queue
)

// MaxQPs is the largest number of queue pairs that ibv_srq_pingpong supports.
const MaxQPs = 256

// Config holds the parameters of a session. Kind, Bytes, MTU, QPs and Iterations must be the same
// on both sides.
type Config struct {
	Kind       Kind
	Bytes      int // size of a message
	MTU        roce.MTU
	QPs        int // 1 unless Kind is SRQ; at most MaxQPs
	RecvDepth  int // receives to post; at least QPs
	Iterations int // messages in each direction

	// Check makes the client send a different pattern in each message and compare it with what
	// comes back. It has no effect on a server or with SRQ.
	Check bool

	// GID returns the index of the GID for a session whose TCP connection has the address local.
	GID func(dev *roce.Device, local netip.Addr) (*int, error)

	// CheckGID reports whether a server may send to a GID that a client with the TCP address peer
	// has named. If it is nil, every GID is right.
	CheckGID func(ctx context.Context, peer netip.Addr, gid roce.GID) error

	// Connected, if set, is called before the first message with the addresses of all queue pairs.
	Connected func(local, remote []Address)
}

func (c *Config) transport() roce.QPType {
	switch c.Kind {
	case UC:
		return roce.UC
	case UD:
		return roce.UD
	}
	return roce.RC
}

// grh returns the number of bytes that a receive needs in front of the payload.
func (c *Config) grh() int {
	if c.Kind == UD {
		return roce.GRHLen
	}
	return 0
}

// slot returns the size of a receive buffer in bytes.
func (c *Config) slot() int { return c.grh() + c.Bytes }

// lines returns the number of addresses that the example program sends.
func (c *Config) lines() int {
	if c.Kind == SRQ {
		return MaxQPs // however many queue pairs it uses
	}
	return 1
}

// Client runs the client's side of a session with the server that conn is connected to. It returns
// the time from the first message to the last. The caller closes conn.
func Client(ctx context.Context, dev *roce.Device, c Config, conn net.Conn) (time.Duration, error) {
	return run(ctx, dev, c, func(p *player) error {
		if err := p.open(localAddr(conn)); err != nil {
			return err
		}
		peer, err := clientExchange(ctx, conn, c.lines(), p.addresses())
		if err != nil {
			return err
		}
		return p.connect(ctx, peer)
	}, true)
}

// Server runs the server's side of a session with the client that conn is connected to, as Client
// does. It returns an error that wraps ErrExchange if the peer does not speak the protocol.
func Server(ctx context.Context, dev *roce.Device, c Config, conn net.Conn) (time.Duration, error) {
	return run(ctx, dev, c, func(p *player) error {
		return serverExchange(ctx, conn, c.lines(), func(peer []Address) ([]Address, error) {
			if err := peer[0].check(); err != nil {
				return nil, err
			}
			if err := c.checkGIDs(ctx, remoteAddr(conn).Addr(), peer); err != nil {
				return nil, err
			}
			// The TCP connection and the RDMA traffic may use different IP versions.
			local := localAddr(conn)
			if peer[0].GID.IsIPv4() != local.Unmap().Is4() {
				local = unspecified(peer[0].GID)
			}
			if err := p.open(local); err != nil {
				return nil, err
			}
			return p.addresses(), p.connect(ctx, peer)
		})
	}, false)
}

// run connects a player, exchanges the messages and closes the player.
func run(
	ctx context.Context, dev *roce.Device, c Config, connect func(*player) error, client bool,
) (took time.Duration, err error) {
	p := &player{Config: c, dev: dev}
	defer func() { err = errors.Join(err, p.close(err == nil)) }()
	if err := connect(p); err != nil {
		return 0, err
	}
	if c.Connected != nil {
		c.Connected(p.addresses(), p.peer[:p.QPs])
	}
	return p.play(ctx, client)
}

// checkGIDs checks the GIDs of a client's queue pairs. A client with another GID does not end the
// wait of Serve.
func (c *Config) checkGIDs(ctx context.Context, client netip.Addr, peer []Address) error {
	if c.CheckGID == nil {
		return nil
	}
	for i := range peer[:c.QPs] {
		if i > 0 && peer[i].GID == peer[i-1].GID {
			continue
		}
		if err := c.CheckGID(ctx, client, peer[i].GID); err != nil {
			return notAClient{err}
		}
	}
	return nil
}

func remoteAddr(conn net.Conn) netip.AddrPort {
	a := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}

func localAddr(conn net.Conn) netip.Addr {
	return conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr()
}

// unspecified returns the unspecified address of the GID's IP version. No interface has it, so
// Config.GID chooses the first GID of that version.
func unspecified(g roce.GID) netip.Addr {
	if g.IsIPv4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}
