// Package session holds what the two ends of a ping or perf session have in
// common: queue pairs with a buffer each, made from what the peer told over oob
// and taken apart as a whole.
package session

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/roce"
)

// align keeps the pieces of the buffer on cache lines, and atomics on 8 bytes.
const align = 64

// Config says what a session needs.
type Config struct {
	QPs       int  // made by New
	MaxQPs    int  // that there may be, if Add makes more
	SendDepth int  // work requests a QP
	RecvDepth int  // work requests a QP
	Bytes     int  // of each of a QP's two buffers
	Shared    bool // all QPs have the same two buffers
	MTU       roce.MTU
	Flags     *device.Flags
}

// Memory is how much of it the session's buffers take.
func (c *Config) Memory() int64 {
	pairs := max(c.QPs, c.MaxQPs)
	if c.Shared {
		pairs = 1
	}
	return 2 * int64(pairs) * int64(stride(c.Bytes))
}

func stride(bytes int) int { return (bytes + align - 1) / align * align }

// Session is one end. All QPs complete into CQ.
type Session struct {
	Dev  *roce.Device
	CQ   *roce.CQ
	MR   *roce.MR
	QPs  []*roce.QP
	Peer []exchange.QP // as the peer told; valid after Connect

	pd  *roce.PD
	gid *int
	cfg Config
}

// ErrPeer says that the peer's queue pairs do not fit what was agreed.
var ErrPeer = errors.New("the peer's queue pairs do not fit the request: use the same gorxe on both ends")

// New makes the queue pairs and their memory, for a peer that is reached from the address local.
func New(dev *roce.Device, local netip.Addr, cfg Config) (*Session, error) {
	s := &Session{Dev: dev, cfg: cfg}
	if err := s.build(local); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Session) build(local netip.Addr) (err error) {
	if s.gid, err = s.cfg.Flags.GIDFor(s.Dev, local); err != nil {
		return err
	}
	if s.pd, err = s.Dev.AllocPD(); err != nil {
		return err
	}
	access := roce.LocalWrite | roce.RemoteWrite | roce.RemoteRead | roce.RemoteAtomic
	if s.MR, err = s.pd.AllocMR(int(s.cfg.Memory()), access); err != nil {
		return err
	}
	if s.CQ, err = s.Dev.CreateCQ(max(s.cfg.QPs, s.cfg.MaxQPs) * (s.cfg.SendDepth + s.cfg.RecvDepth)); err != nil {
		return err
	}
	for range s.cfg.QPs {
		if _, err := s.Add(); err != nil {
			return err
		}
	}
	return nil
}

// Add makes a further queue pair, the last of QPs.
func (s *Session) Add() (*roce.QP, error) {
	qp, err := s.Dev.CreateQP(s.pd, roce.QPConfig{
		SendCQ: s.CQ, SendDepth: s.cfg.SendDepth, RecvDepth: s.cfg.RecvDepth, GIDIndex: s.gid,
	})
	if err == nil {
		s.QPs = append(s.QPs, qp)
	}
	return qp, err
}

// In is the offset in MR of QP i's buffer that the peer writes, reads and sends to.
func (s *Session) In(i int) int {
	if s.cfg.Shared {
		return 0
	}
	return 2 * i * stride(s.cfg.Bytes)
}

// Out is the offset in MR of QP i's buffer for what this end sends, writes and reads itself.
func (s *Session) Out(i int) int { return s.In(i) + stride(s.cfg.Bytes) }

// Local is what the peer has to know.
func (s *Session) Local() []exchange.QP {
	qps := make([]exchange.QP, len(s.QPs))
	for i := range s.QPs {
		qps[i] = s.LocalQP(i)
	}
	return qps
}

// LocalQP is what the peer has to know of QP i.
func (s *Session) LocalQP(i int) exchange.QP {
	r := s.MR.Remote()
	r.Addr += uint64(s.In(i))
	r.Len = uint64(s.cfg.Bytes)
	return exchange.QP{Endpoint: s.QPs[i].Local(), Buffer: r}
}

// Connect joins the queue pairs to the peer's, in order.
func (s *Session) Connect(ctx context.Context, peer []exchange.QP) error {
	if len(peer) != len(s.QPs) {
		return fmt.Errorf("%w: %d of them instead of %d", ErrPeer, len(peer), len(s.QPs))
	}
	for i, qp := range s.QPs {
		if peer[i].Buffer.Len < uint64(s.cfg.Bytes) {
			return fmt.Errorf("%w: a buffer of %d bytes instead of %d", ErrPeer, peer[i].Buffer.Len, s.cfg.Bytes)
		}
		if err := qp.Connect(ctx, peer[i].Endpoint, roce.ConnectOptions{MTU: s.cfg.MTU}); err != nil {
			return err
		}
	}
	s.Peer = peer
	return nil
}

// GID is the one that the session talks from.
func (s *Session) GID() (roce.GIDEntry, error) {
	for _, g := range s.Dev.GIDs() {
		if s.gid != nil && g.Index == *s.gid {
			return g, nil
		}
	}
	return roce.GIDEntry{}, fmt.Errorf("the address to talk from has gone from %s", s.Dev.Info().Name)
}

// PathMTU is the path MTU that both ends have agreed on.
func (s *Session) PathMTU() roce.MTU {
	mtu := s.QPs[0].Local().MTU
	if len(s.Peer) > 0 {
		mtu = min(mtu, s.Peer[0].Endpoint.MTU)
	}
	if s.cfg.MTU != 0 {
		mtu = min(mtu, s.cfg.MTU)
	}
	return mtu
}

// Close takes the session apart. The device stays.
func (s *Session) Close() error {
	var err error
	for _, qp := range s.QPs {
		err = errors.Join(err, qp.Close())
	}
	if s.CQ != nil {
		err = errors.Join(err, s.CQ.Close())
	}
	if s.MR != nil {
		err = errors.Join(err, s.MR.Close())
	}
	if s.pd != nil {
		err = errors.Join(err, s.pd.Close())
	}
	return err
}

// StatusError says in one line what a failed completion means.
func StatusError(wc *roce.WC) error {
	if hint, ok := hints[wc.Status]; ok {
		return fmt.Errorf("%v failed: %v: %s", wc.Opcode, wc.Status, hint)
	}
	return fmt.Errorf("%v failed: %v", wc.Opcode, wc.Status)
}

var hints = map[roce.Status]string{
	roce.RetryExcErr:    "the peer's RDMA side does not answer: is its gorxe still there, and does anything between drop UDP port 4791?",
	roce.RNRRetryExcErr: "the peer posted no receives",
	roce.RemAccessErr:   "the peer refused access to its memory",
	roce.WRFlushErr:     "the connection broke",
}
