package stock

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// maxReads is the number of outstanding READs and atomics of a queue pair that the local side
	// announces in its keys.
	maxReads = 16
	// ipv6Extra is the number of bytes by which an RDMA WRITE Only with Immediate over IPv6 exceeds
	// the headroom of a path MTU. Package roce reserves it.
	ipv6Extra = 4
	// ackTimeout is the Local ACK Timeout, 1.07 s. With all retries, a peer may be silent for 8 s.
	// A host with one CPU that perftest polls on may not answer for 7 s, not even over TCP.
	ackTimeout = 18
	// pageBytes is the size of the smallest buffer of a perftest program.
	pageBytes = 4096
)

var (
	// errStock means that only two gorxe sides can run the test.
	errStock = errors.New("the peer is perftest: use gorxe on both sides for this test")
	// errGIDs means that the two sides use different IP versions.
	errGIDs = errors.New("the GIDs do not match")
)

// testOf returns the test as perftest knows it.
func testOf(p *perf.Params) (t perftest.Test, err error) {
	t.Latency = p.Operation.Latency
	switch {
	case p.Bidirectional:
		return t, fmt.Errorf("%w, or do not use -b", errStock)
	case p.Operation.Op == roce.OpWriteImm:
		return t, fmt.Errorf("%w, or run write-bw", errStock)
	case p.Operation.Op == roce.OpWrite:
		t.Verb = perftest.Write
	case p.Operation.Op == roce.OpRead:
		t.Verb = perftest.Read
	case p.Operation.Op == roce.OpSend:
		t.Verb = perftest.Send
	default:
		t.Verb = perftest.Atomic
	}
	return t, nil
}

// offeredMTU returns the path MTU that the local side offers: the largest one that its interface
// carries from the session's GID. A limit other than 0 reduces it.
func offeredMTU(s *session.Session, limit roce.MTU) (roce.MTU, error) {
	g, err := s.GID()
	if err != nil {
		return 0, err
	}
	bytes := s.Dev.Info().MTU
	if !g.Addr.Is4() {
		bytes -= ipv6Extra
	}
	mtu := bth.MTUFor(bytes)
	if limit != 0 {
		mtu = min(mtu, limit)
	}
	if mtu == 0 {
		return 0, roce.ErrMTU
	}
	return mtu, nil
}

// keyOf returns what the peer must know about queue pair i.
func keyOf(s *session.Session, i int) perftest.Key {
	q := s.LocalQP(i)
	return perftest.Key{
		OutReads: maxReads, QPN: q.Endpoint.QPN, PSN: q.Endpoint.PSN, RKey: q.Buffer.RKey,
		Addr: q.Buffer.Addr, GID: q.Endpoint.GID,
	}
}

// connect connects queue pair i to the peer's. mtu is the path MTU that both sides have agreed on.
// Both send packets of that size, so the path must carry it.
func connect(ctx context.Context, s *session.Session, i int, k perftest.Key, mtu roce.MTU) error {
	g, err := s.GID()
	if err != nil {
		return err
	}
	if k.GID.IsIPv4() != g.GID.IsIPv4() {
		return fmt.Errorf("%w: the peer's is %v, the local one %v: start both sides with GIDs of one IP version (-x)",
			errGIDs, k.GID, g.GID)
	}
	qp := s.QPs[i]
	err = qp.Connect(ctx, k.Endpoint(mtu), roce.ConnectOptions{
		MTU: mtu, Timeout: ackTimeout, MaxRdAtomic: k.Reads(maxReads), MaxDestRdAtomic: maxReads,
	})
	if err != nil {
		return err
	}
	a, err := qp.Query()
	if err == nil && a.PathMTU != mtu {
		err = fmt.Errorf("the path to %v has a path MTU of %d, but both sides offer %d: start one of them with -m %d",
			k.GID, a.PathMTU, mtu, a.PathMTU)
	}
	return err
}

// peerQP returns the peer's queue pair for the session. perftest does not tell the size of its
// buffer.
func peerQP(k perftest.Key, mtu roce.MTU, bytes int) exchange.QP {
	return exchange.QP{
		Endpoint: k.Endpoint(mtu),
		Buffer:   roce.RemoteBuffer{Addr: k.Addr, RKey: k.RKey, Len: uint64(bytes)},
	}
}

// peer is a connected perftest program.
type peer struct {
	link   *perftest.Link
	local  netip.Addr     // address of the local side
	remote netip.Addr     // address of the peer; server only
	cm     netip.AddrPort // address of the peer if the sides use rdma_cm (-R), otherwise not valid
	// checkGID checks the GIDs that the peer sends. It is nil if the connection manager has
	// connected the queue pairs, and on the client.
	checkGID func(ctx context.Context, gid roce.GID) error
}

func (p *peer) byCM() bool { return p.cm.IsValid() }
