package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/roce"
)

// align keeps buffers on separate cache lines, and atomics on multiples of 8 bytes.
const align = 64

// Config describes a session.
type Config struct {
	QPs       int  // created by New
	MaxQPs    int  // largest number of queue pairs, if the caller adds more
	SendDepth int  // work requests per queue pair
	RecvDepth int  // work requests per queue pair
	Bytes     int  // of each of the two buffers of a queue pair
	Shared    bool // all queue pairs use the same two buffers
	MTU       roce.MTU
	GID       device.GIDIndex
	AckFirst  bool // see roce.QPConfig
}

// Memory returns the number of bytes that the buffers of the session use.
func (c *Config) Memory() int64 {
	pairs := max(c.QPs, c.MaxQPs)
	if c.Shared {
		pairs = 1
	}
	return 2 * int64(pairs) * int64(stride(c.Bytes))
}

func stride(bytes int) int { return (bytes + align - 1) / align * align }

// Session is one side of a session. All queue pairs complete into CQ. MR contains two buffers per
// queue pair: see In and Out.
type Session struct {
	*endpoint.Endpoint
	Peer []exchange.QP // the peer's queue pairs, valid after Connect

	gid *int
	cfg Config
}

// ErrPeer means that the peer's queue pairs do not match the request.
var ErrPeer = errors.New("the peer's queue pairs do not match the request: use the same gorxe on both sides")

// New creates the queue pairs and their memory. local is the local address of the connection to the
// peer; it determines the GID if cfg does not.
func New(dev *roce.Device, local netip.Addr, cfg Config) (*Session, error) {
	gid, err := cfg.GID.Choose(dev, local)
	if err != nil {
		return nil, err
	}
	qps := cfg.QPs
	if qps == 0 {
		qps = -1 // none
	}
	e, err := endpoint.New(dev, endpoint.Config{
		QP: roce.QPConfig{SendDepth: cfg.SendDepth, RecvDepth: cfg.RecvDepth, GIDIndex: gid,
			AckFirst: cfg.AckFirst},
		QPs: qps, MaxQPs: cfg.MaxQPs, Memory: int(cfg.Memory()),
	})
	if err != nil {
		return nil, err
	}
	return &Session{Endpoint: e, gid: gid, cfg: cfg}, nil
}

// NewWithin is like New, but takes the session's memory from a budget. peer is the address of the
// peer. release destroys the session and returns the memory.
func NewWithin(
	b *Budget, dev *roce.Device, local, peer netip.Addr, cfg Config,
) (s *Session, release func(), err error) {
	giveBack, err := b.Take(peer, cfg.Memory())
	if err != nil {
		return nil, nil, err
	}
	if s, err = New(dev, local, cfg); err != nil {
		giveBack()
		return nil, nil, err
	}
	return s, func() {
		s.Close()
		b.collect(cfg.Memory())
		giveBack()
	}, nil
}

// In returns the offset in MR of the buffer of queue pair i that the peer accesses and sends to.
func (s *Session) In(i int) int {
	if s.cfg.Shared {
		return 0
	}
	return 2 * i * stride(s.cfg.Bytes)
}

// Out returns the offset in MR of the buffer of queue pair i for the local side's own messages.
func (s *Session) Out(i int) int { return s.In(i) + stride(s.cfg.Bytes) }

// Local returns what the peer must know about the queue pairs.
func (s *Session) Local() []exchange.QP {
	qps := make([]exchange.QP, len(s.QPs))
	for i := range s.QPs {
		qps[i] = s.LocalQP(i)
	}
	return qps
}

// LocalQP returns what the peer must know about queue pair i.
func (s *Session) LocalQP(i int) exchange.QP {
	r := s.MR.Remote()
	r.Addr += uint64(s.In(i))
	r.Len = uint64(s.cfg.Bytes)
	e := s.QPs[i].Local()
	if s.cfg.MTU != 0 {
		e.MTU = min(e.MTU, s.cfg.MTU)
	}
	return exchange.QP{Endpoint: e, Buffer: r}
}

// Expect says that the peer probably has an address, before its GID is known. The route to it may
// have a smaller MTU than the interface. The peer must know that, so call Expect before Local.
func (s *Session) Expect(ctx context.Context, peer netip.Addr) {
	_ = s.limitMTU(ctx, bth.GIDFromAddr(peer.Unmap())) // Connect returns errors of the real path
}

// limitMTU lowers the path MTU to that of the route to a peer.
func (s *Session) limitMTU(ctx context.Context, peer roce.GID) error {
	gid := -1
	if s.gid != nil {
		gid = *s.gid
	}
	_, mtu, err := s.Dev.ResolvePath(ctx, gid, peer, roce.PathOptions{})
	if err == nil && (s.cfg.MTU == 0 || mtu < s.cfg.MTU) {
		s.cfg.MTU = mtu
	}
	return err
}

// Connect connects the queue pairs to those of the peer, in order. From then on, Local returns the
// path MTU of the connection.
func (s *Session) Connect(ctx context.Context, peer []exchange.QP) error {
	if len(peer) != len(s.QPs) {
		return fmt.Errorf("%w: %d instead of %d", ErrPeer, len(peer), len(s.QPs))
	}
	if len(peer) > 0 {
		if err := s.limitMTU(ctx, peer[0].Endpoint.GID); err != nil {
			return err
		}
	}
	for i, qp := range s.QPs {
		if peer[i].Buffer.Len < uint64(s.cfg.Bytes) {
			return fmt.Errorf("%w: a buffer of %d bytes instead of %d", ErrPeer, peer[i].Buffer.Len,
				s.cfg.Bytes)
		}
		if err := qp.Connect(ctx, peer[i].Endpoint,
			roce.ConnectOptions{MTU: s.cfg.MTU}); err != nil {
			return err
		}
	}
	s.Peer = peer
	return nil
}

// GID returns the local GID of the session. It fails if the address was removed from the interface.
func (s *Session) GID() (roce.GIDEntry, error) {
	for _, g := range s.Dev.GIDs() {
		if s.gid != nil && g.Index == *s.gid {
			return g, nil
		}
	}
	return roce.GIDEntry{},
		fmt.Errorf("the address of this session was removed from %s", s.Dev.Info().Name)
}

// PathMTU returns the path MTU that both sides have agreed on.
func (s *Session) PathMTU() roce.MTU {
	mtu := s.LocalQP(0).Endpoint.MTU
	if len(s.Peer) > 0 {
		mtu = min(mtu, s.Peer[0].Endpoint.MTU)
	}
	return mtu
}
