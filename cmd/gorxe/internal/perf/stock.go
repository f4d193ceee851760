package perf

import (
	"context"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

// What perftest's programs and gorxe's have in common is here: "stock" is an
// ib_write_bw or one of its siblings, as any distribution has them.

const (
	// READs and atomics in flight of one queue pair, which perftest agrees on in its keys.
	maxReads = 16
	// An RDMA WRITE Only with Immediate over IPv6 is longer than a path MTU's headroom by this, and roce keeps it free.
	ipv6Extra = 4
	// Local ACK Timeout, 1.07 s: with all retries a peer may be silent for 8 s. A host whose one CPU polls, as perftest does, has
	// been seen to answer nothing, not even TCP, for 7.
	stockTimeout = 18
)

// errStock: the test is one that only two gorxe ends can run.
var errStock = errors.New("the peer is a perftest: use gorxe on both ends for this")

// errGIDs: the two ends cannot reach each other.
var errGIDs = errors.New("the GIDs do not fit")

// stockTest is the test as perftest knows it.
func (p *Params) stockTest() (t perftest.Test, err error) {
	t.Latency = p.op.latency
	switch {
	case p.Bidirectional:
		return t, fmt.Errorf("%w, or leave -b out", errStock)
	case p.op.wr == roce.OpWriteImm:
		return t, fmt.Errorf("%w, or run write-bw", errStock)
	case p.op.wr == roce.OpWrite:
		t.Verb = perftest.Write
	case p.op.wr == roce.OpRead:
		t.Verb = perftest.Read
	case p.op.wr == roce.OpSend:
		t.Verb = perftest.Send
	default:
		t.Verb = perftest.Atomic
	}
	return t, nil
}

// stockMTU is the path MTU that this end offers: what its interface carries from the GID that it talks from, and no more
// than limit, if that is given.
func stockMTU(s *session.Session, limit roce.MTU) (roce.MTU, error) {
	g, err := s.GID()
	if err != nil {
		return 0, err
	}
	room := s.Dev.Info().MTU
	if !g.Addr.Is4() {
		room -= ipv6Extra
	}
	mtu := bth.MTUFor(room)
	if limit != 0 {
		mtu = min(mtu, limit)
	}
	if mtu == 0 {
		return 0, roce.ErrMTU
	}
	return mtu, nil
}

// stockKey is what the peer has to know of QP i.
func stockKey(s *session.Session, i int) perftest.Key {
	q := s.LocalQP(i)
	return perftest.Key{
		OutReads: maxReads, QPN: q.Endpoint.QPN, PSN: q.Endpoint.PSN, RKey: q.Buffer.RKey, Addr: q.Buffer.Addr, GID: q.Endpoint.GID,
	}
}

// connectStock joins QP i to the peer's. mtu is what both have agreed on: both ends send packets of that size.
func connectStock(ctx context.Context, s *session.Session, i int, k perftest.Key, mtu roce.MTU) error {
	g, err := s.GID()
	if err != nil {
		return err
	}
	if k.GID.IsIPv4() != g.GID.IsIPv4() {
		return fmt.Errorf("%w: the peer's is %v, ours is %v: start both ends with GIDs of one IP version (-x)", errGIDs, k.GID, g.GID)
	}
	qp := s.QPs[i]
	err = qp.Connect(ctx, k.Endpoint(mtu), roce.ConnectOptions{
		MTU: mtu, Timeout: stockTimeout, MaxRdAtomic: k.Reads(maxReads), MaxDestRdAtomic: maxReads,
	})
	if err != nil {
		return err
	}
	a, err := qp.Query()
	if err == nil && a.PathMTU != mtu {
		err = fmt.Errorf("the way to %v carries a path MTU of %d, both ends offer %d: start one with -m %d", k.GID, a.PathMTU, mtu, a.PathMTU)
	}
	return err
}

// stockPeer is the peer's queue pair as the session knows it. perftest does not tell how large a buffer is.
func stockPeer(k perftest.Key, mtu roce.MTU, bytes int) exchange.QP {
	return exchange.QP{Endpoint: k.Endpoint(mtu), Buffer: roce.RemoteBuffer{Addr: k.Addr, RKey: k.RKey, Len: uint64(bytes)}}
}
