package perf

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	stockQPs   = 64         // that a perftest client may bring
	stockBytes = allLargest // of its messages, unless the server's user says more (-s)
	stockRecvs = 512        // posted on each queue pair, as perftest's servers do
	stockSends = 16         // answers under way; as many may be first messages
)

// errNoTest: the client went before anything was measured.
var errNoTest = errors.New("the client closed before its test began: were its flags, or its GID index (-x), to its liking?")

// Greet tells gorxe's clients from perftest's, and how to serve the latter. It is for exchange.Server.
func (h *Host) Greet(ctx context.Context, conn *exchange.Conn) (serve func(context.Context) error, err error) {
	first, err := conn.PeekByte(ctx, exchange.Timeout)
	if err != nil || first == '{' {
		return nil, err // the request of a gorxe that knows whom it talks to, such as a ping
	}
	srv, err := perftest.Answer(ctx, perftest.NewLink(conn.Stream()))
	if err != nil || srv.Peer.Gorxe {
		return nil, err
	}
	return func(ctx context.Context) error {
		return h.serveStock(ctx, meeting{local: conn.Local().AddrPort().Addr()}, srv, nil)
	}, nil
}

// stockServer serves one perftest client. It finds out what the client wants from what the client does: perftest does not
// say, and expects both users to give the same flags.
//
// Two goroutines: talk answers on TCP and makes queue pairs; attend, in the caller's, looks after receives and answers
// messages. What both use is under mu.
type stockServer struct {
	h     *Host
	at    meeting
	srv   *perftest.Server
	s     *session.Session
	mtu   roce.MTU
	bytes int // of the buffers

	// By rdma_cm only.
	door    *door
	reqs    chan *roce.Request // queue pairs that the client connects
	offered sync.WaitGroup     // those not yet accepted
	meets   int                // of talk
	theirs  [stockQPs]roce.QPN // to which each of ours is connected
	conns   []*roce.Conn
	parted  atomic.Bool // this end has disconnected them

	seen     atomic.Int64 // when the last message came that this end sees, Unix nanoseconds
	wrote    atomic.Bool  // it was a WRITE
	reported bool         // the client has told its result; under mu

	stop  context.CancelCauseFunc
	done  atomic.Bool   // talk has ended
	ended chan struct{} // closed then
	goOn  chan struct{} // closed when a run is about to begin that this end may have to answer

	barrier atomic.Int64 // when the last one was, Unix nanoseconds

	mu     sync.Mutex
	unfit  error    // why the client cannot be served, after it has got our key
	begun  bool     // Started took it
	memory *written // to be watched after goOn
	p      *Params  // of the head and the rows
	peers  []perftest.Key
	syncs  int
}

// serveStock serves a perftest client up to its end. d is nil where the ends have met by TCP.
func (h *Host) serveStock(ctx context.Context, at meeting, srv *perftest.Server, d *door) error {
	v := &stockServer{h: h, at: at, srv: srv, door: d, reqs: make(chan *roce.Request, stockQPs), bytes: stockBytes, goOn: make(chan struct{}), ended: make(chan struct{})}
	if h.Want != nil {
		v.bytes = max(v.bytes, h.Want.Bytes)
	}
	cfg := session.Config{
		MaxQPs: stockQPs, SendDepth: 2 * stockSends, RecvDepth: stockRecvs, Shared: true, Flags: h.Flags,
		Bytes: 2 * v.bytes, // what SENDs bring lies behind what WRITEs bring, which is watched
	}
	if h.Budget != nil {
		release, err := h.Budget.Take(cfg.Memory())
		if err != nil {
			return err
		}
		defer release()
	}
	var err error
	if v.s, err = session.New(h.Dev, at.local, cfg); err != nil {
		return err
	}
	defer v.s.Close()
	defer func() {
		for _, c := range v.conns {
			c.Close()
		}
	}()
	err = v.serve(ctx)
	if v.began() && h.Ended != nil {
		h.Ended(err)
	}
	return err
}

func (v *stockServer) began() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.begun
}

func (v *stockServer) serve(parent context.Context) error {
	limit := roce.MTU(0)
	if v.h.Want != nil {
		limit = v.h.Want.MTU
	}
	mtu, err := stockMTU(v.s, limit)
	if err != nil {
		return err
	}
	if v.mtu, err = v.srv.Agree(parent, mtu); err != nil {
		return err
	}
	if c := v.srv.Cycle(); c > v.bytes {
		return fmt.Errorf("%w: it cycles through %d bytes, this server's buffers have %d", perftest.ErrProtocol, c, v.bytes)
	}
	ctx, stop := context.WithCancelCause(parent)
	defer stop(nil)
	v.stop = stop
	talked := make(chan error, 1)
	go func() {
		err := v.srv.Serve(ctx, v)
		v.done.Store(true)
		close(v.ended)
		stop(nil)
		talked <- err
	}()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		if v.door == nil {
			return
		}
		if err := v.join(ctx); err != nil {
			stop(err)
		}
	}()
	err = newAttendant(v).attend(ctx)
	stop(err)
	<-joined
	if said := <-talked; err == nil {
		err = said
	}
	if err == nil && parent.Err() == nil {
		err = v.unserved()
	}
	return err
}

// unserved says why a client that ended well was not.
func (v *stockServer) unserved() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.unfit != nil:
		return v.unfit
	case v.syncs == 0:
		return errNoTest
	}
	return nil
}

// QueuePair is perftest.Host's.
func (v *stockServer) QueuePair(ctx context.Context, peer perftest.Key) (perftest.Key, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.connected(ctx, peer)
	if err != nil {
		return perftest.Key{}, err
	}
	v.peers = append(v.peers, peer)
	v.s.Peer[i] = stockPeer(peer, v.mtu, v.bytes)
	return stockKey(v.s, i), nil
}

// connected gives the queue pair that is connected to the peer's; by TCP it is made now. The caller holds mu.
func (v *stockServer) connected(ctx context.Context, peer perftest.Key) (int, error) {
	if v.door != nil {
		return v.known(peer)
	}
	i, _, err := v.add()
	if err != nil {
		return 0, err
	}
	if err := connectStock(ctx, v.s, i, peer, v.mtu); errors.Is(err, errGIDs) {
		v.unfit = err // the client's user gets to know by our key
	} else if err != nil {
		return 0, err
	}
	return i, nil
}

func (v *stockServer) addQP() (int, *roce.QP, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.add()
}

// add makes a further queue pair, with receives. The caller holds mu.
func (v *stockServer) add() (int, *roce.QP, error) {
	i := len(v.s.QPs)
	if i == stockQPs {
		return 0, nil, fmt.Errorf("%w: more than %d queue pairs (-q)", perftest.ErrProtocol, stockQPs)
	}
	qp, err := v.s.Add()
	if err != nil {
		return 0, nil, err
	}
	v.s.Peer = append(v.s.Peer, exchange.QP{})
	return i, qp, v.postRecvs(i, stockRecvs)
}

// postRecvs posts n receives on QP i, all into one buffer. The caller holds mu.
func (v *stockServer) postRecvs(i, n int) error {
	var wrs [maxBatch]roce.RecvWR
	sge := []roce.SGE{v.s.MR.SGE(v.s.In(i)+v.bytes, v.bytes)}
	for n > 0 {
		k := min(n, len(wrs))
		for j := range k {
			wrs[j] = roce.RecvWR{ID: recvFlag | uint64(i)<<idQPShift, SGEs: sge}
		}
		if err := v.s.QPs[i].PostRecv(wrs[:k]...); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// A latency test has one queue pair, and this many barriers in front of its first message.
const latencySyncs = 3

// Sync is perftest.Host's: a barrier, which also ends a run of a test of all sizes.
func (v *stockServer) Sync() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.syncs++
	v.barrier.Store(time.Now().UnixNano())
	if v.unfit != nil {
		return v.unfit
	}
	if v.syncs == 1 {
		if err := v.begin(); err != nil {
			return err
		}
	}
	if v.lastBarrier() {
		v.part()
	}
	if v.syncs == latencySyncs && len(v.peers) == 1 && (v.h.Want == nil || v.h.Want.op.echo != echoNone) {
		v.memory = v.toWatch()
		close(v.goOn)
	}
	return nil
}

// toWatch is the memory that write-lat's messages come to, nil if the test is another. The caller holds mu; the
// client waits.
func (v *stockServer) toWatch() *written {
	size, in := v.h.Size, v.s.In(0)
	switch w := v.h.Want; {
	case size > v.bytes:
		return nil
	case w != nil && w.op.echo != echoWrite:
		return nil
	// Who READs or does atomics says so in the key, and atomics that count look like messages of one byte; who SENDs may
	// have no key for its memory.
	case w == nil && (v.peers[0].OutReads > 1 || v.peers[0].RKey == 0 || !untouched(v.s.MR, in)):
		return nil
	}
	return watchMemory(v.s.MR, in, v.bytes, size)
}

// begin tells of the client, once all its queue pairs are known. The caller holds mu.
func (v *stockServer) begin() error {
	v.p = &Params{Op: "perftest", QPs: len(v.peers), Bytes: v.bytes, Depth: defaultDepth, op: &operation{title: "perftest"}}
	if w := v.h.Want; w != nil {
		p := *w
		p.QPs = len(v.peers)
		v.p = &p
	}
	if v.h.Started != nil {
		if err := v.h.Started(v.p, v.s, v.s.Peer); err != nil {
			return err
		}
	}
	v.begun = true
	return nil
}

// Report is perftest.Host's. A client of one direction does not look at it.
func (v *stockServer) Report() perftest.Report { return perftest.Report{} }

// Reported is perftest.Host's: what the client of a one-sided bandwidth test measured. Its unit is the one of its user's
// flags, which have to be this end's too.
func (v *stockServer) Reported(r perftest.Report) {
	v.mu.Lock()
	v.reported = true
	v.mu.Unlock()
	if r.Check() != nil {
		return
	}
	c := &bwColumns{
		Peak: cli.Round(r.Peak, 3), Average: cli.Round(r.Average, 3), MsgRate: cli.Round(r.MsgRate, 6), Unit: unitMB,
	}
	if v.h.Gbits {
		c.Unit = unitGb
	}
	v.row(int(r.Bytes), int64(r.Iterations), c, nil)
}

// row shows a result.
func (v *stockServer) row(bytes int, n int64, bw *bwColumns, lat *latColumns) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.p == nil || v.h.Finished == nil {
		return
	}
	v.h.Finished(v.p, v.s, &Row{
		Op: v.p.Op, Datapath: v.s.Dev.Info().Datapath, PathMTU: v.mtu, AskedMTU: v.p.tooLarge(v.mtu), QPs: v.p.QPs,
		Bytes: bytes, Iterations: n, bwColumns: bw, latColumns: lat,
	})
}
