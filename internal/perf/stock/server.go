package stock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	maxQPs = 64 // of a client
	// largest message, unless the server's user chooses a larger size
	defaultBytes = perf.LargestSize
	recvDepth    = 512 // receives posted on each queue pair, as in perftest's servers
	// outstanding replies; the send queue is twice as deep for first messages
	maxReplies   = 16
	latencySyncs = 3 // barriers of a latency test before its first message
)

// errNoTest means that the client closed the connection before its test began.
var errNoTest = errors.New("the client closed the connection before its test began: " +
	"check its flags, especially its GID index (-x)")

// Server serves perftest clients. Its embedded Host serves gorxe clients. Set the fields before
// using it.
type Server struct {
	perf.Host

	// Perftest clients do not tell which test they run, but the server's user may know it.

	Want       *perf.Params // nil: any test
	Size       int          // of the messages; 0: not known
	Iterations int          // of a run; 0: not known
	AllSizes   bool         // the client runs all sizes; must be set if Iterations is
	Gbits      bool         // the clients' reports use perf.UnitGb

	Guard *guard.Guard // decides which clients by rdma_cm are served; nil: all

	times times
}

// times holds the times that tests change; 0 means the constant.
type times struct {
	quiet   time.Duration // peerQuiet
	connect time.Duration // session.Acceptor.ConnectTime
	second  time.Duration // secondMessage
	first   time.Duration // firstMessage
	reply   time.Duration // firstReply
	over    time.Duration // overTime
}

// Detect recognizes perftest clients. It is an exchange.Detector.
func (s *Server) Detect(ctx context.Context,
	conn *exchange.Conn) (serve func(context.Context) error, err error) {
	first, err := conn.PeekByte(ctx, exchange.Timeout)
	if err != nil || first == '{' {
		return nil, err // a gorxe client that needs no hello, such as gorxe ping
	}
	msgs, err := perftest.AnswerHello(ctx, perftest.NewLink(conn.Stream()))
	if err != nil || msgs.Peer.Gorxe {
		return nil, err
	}
	return func(ctx context.Context) error {
		p := peer{local: conn.Local().AddrPort().Addr(), remote: conn.Remote().AddrPort().Addr(),
			checkGID: conn.CheckGID}
		return s.serve(ctx, p, msgs, nil)
	}, nil
}

// serverSession is the session of one client. Two goroutines share it: one exchanges perftest's
// messages and creates queue pairs, the other one handles receives and replies (messageHandler). mu
// protects what both use.
type serverSession struct {
	server *Server
	peer   peer
	msgs   *perftest.Server
	s      *session.Session
	mtu    roce.MTU
	bytes  int // of the buffers

	// With rdma_cm only.
	acceptor     *acceptor
	reqs         chan *roce.Request // queue pairs that the client connects
	offered      sync.WaitGroup     // requests in reqs or being accepted
	blankKeys    int
	remoteQPN    [maxQPs]roce.QPN // queue pair that each local one is connected to
	conns        []*roce.Conn
	disconnected atomic.Bool // by the server

	barrier atomic.Int64 // time of the last barrier, Unix nanoseconds
	passed  atomic.Int32 // number of barriers
	// of capacity 1: there is a barrier that the message handler has not handled
	wake    chan struct{}
	handled chan struct{} // of capacity 1: the handler has handled the barrier
	deaf    chan struct{} // closed when the handler does not handle barriers anymore
	overAt  atomic.Int64  // when the test is over unless something happens, Unix nanoseconds; or 0

	stop  context.CancelCauseFunc
	done  atomic.Bool   // the exchange of messages has ended
	ended chan struct{} // closed when done is set
	ready chan struct{} // closed when a run begins whose messages may need replies from memory

	mu       sync.Mutex
	reported bool  // the client has sent its result
	refused  error // why the client cannot be served, if it already has the local key
	begun    bool  // Started has accepted the client
	memory   *writeWatcher
	params   *perf.Params // for the callbacks
	peers    []perftest.Key
	syncs    int
}

// serve serves a perftest client. a is nil if the client connected over TCP.
func (s *Server) serve(ctx context.Context, p peer, msgs *perftest.Server, a *acceptor) error {
	v := &serverSession{
		server: s, peer: p, msgs: msgs, acceptor: a, reqs: make(chan *roce.Request, maxQPs),
		bytes: defaultBytes, wake: make(chan struct{}, 1),
		handled: make(chan struct{}, 1), deaf: make(chan struct{}),
		ready: make(chan struct{}), ended: make(chan struct{}),
	}
	if s.Want != nil {
		v.bytes = max(v.bytes, s.Want.Bytes)
	}
	var release func()
	var err error
	v.s, release, err = session.NewWithin(s.Budget, s.Dev, p.local, p.remote, session.Config{
		MaxQPs: maxQPs, SendDepth: 2 * maxReplies, RecvDepth: recvDepth, Shared: true, GID: s.GID,
		AckFirst: true, // for ib_send_lat -e
		// WRITEs go to the first half, which is watched, and SENDs to the second
		Bytes: 2 * v.bytes,
	})
	if err != nil {
		return err
	}
	defer release()
	defer func() {
		for _, c := range v.conns {
			c.Close()
		}
	}()
	err = v.serve(ctx)
	if v.hasBegun() && s.Ended != nil {
		s.Ended(err)
	}
	return err
}

func (v *serverSession) hasBegun() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.begun
}

func (v *serverSession) serve(parent context.Context) error {
	if err := v.setup(parent); err != nil {
		return err
	}
	limited, release := v.limitTime(parent)
	defer release()
	ctx, stop := context.WithCancelCause(limited)
	defer stop(nil)
	v.stop = stop
	exchanged := make(chan error, 1)
	go func() {
		err := v.msgs.Serve(ctx, v)
		v.done.Store(true)
		close(v.ended)
		stop(nil)
		exchanged <- err
	}()
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		if v.acceptor == nil {
			return
		}
		if err := v.acceptQPs(ctx); err != nil {
			stop(err)
		}
	}()
	err := newMessageHandler(v).run(ctx)
	stop(err)
	<-accepted
	if failed := <-exchanged; err == nil {
		err = failed
	}
	if err == nil && parent.Err() == nil {
		err = v.unserved()
	}
	return err
}

// limitTime returns a context that ends when the session is idle or takes too long.
func (v *serverSession) limitTime(ctx context.Context) (context.Context, func()) {
	ctx, stop := session.WatchIdle(ctx, v.server.Idle, func() []*roce.QP {
		v.mu.Lock()
		defer v.mu.Unlock()
		return slices.Clone(v.s.QPs)
	})
	if v.server.MaxRun == 0 {
		return ctx, stop
	}
	ctx, cancel := session.LimitTime(ctx, v.server.MaxRun, perf.ErrRunTooLong)
	return ctx, func() {
		cancel()
		stop()
	}
}

// setup agrees on the path MTU and checks what the client announces.
func (v *serverSession) setup(ctx context.Context) error {
	limit := roce.MTU(0)
	if v.server.Want != nil {
		limit = v.server.Want.MTU
	}
	mtu, err := offeredMTU(v.s, limit)
	if err != nil {
		return err
	}
	if v.mtu, err = v.msgs.AgreeMTU(ctx, mtu); err != nil {
		return err
	}
	if c := v.msgs.Cycle(); c > v.bytes {
		return fmt.Errorf("%w: it cycles through %d bytes, but this server's buffers have %d",
			perftest.ErrProtocol, c, v.bytes)
	}
	return nil
}

// unserved returns an error if the client closed the connection without having been served.
func (v *serverSession) unserved() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.refused != nil:
		return v.refused
	case v.syncs == 0:
		return errNoTest
	}
	return nil
}

// QueuePair implements perftest.Host.
func (v *serverSession) QueuePair(ctx context.Context, k perftest.Key) (perftest.Key, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	i, err := v.connectedQP(ctx, k)
	if err != nil {
		return perftest.Key{}, err
	}
	v.peers = append(v.peers, k)
	v.s.Peer[i] = peerQP(k, v.mtu, v.bytes)
	return keyOf(v.s, i), nil
}

// connectedQP returns the queue pair that is connected to the peer's. Over TCP, it creates and
// connects it. The caller holds mu.
func (v *serverSession) connectedQP(ctx context.Context, k perftest.Key) (int, error) {
	if v.acceptor != nil {
		return v.findQP(k)
	}
	if err := v.peer.checkGID(ctx, k.GID); err != nil {
		return 0, err
	}
	i, _, err := v.addQP()
	if err != nil {
		return 0, err
	}
	if err := connect(ctx, v.s, i, k, v.mtu); errors.Is(err, errGIDs) {
		v.refused = err // send the local key, so that the client's user sees the difference
	} else if err != nil {
		return 0, err
	}
	return i, nil
}

// addQP creates another queue pair and posts its receives. The caller holds mu.
func (v *serverSession) addQP() (int, *roce.QP, error) {
	i := len(v.s.QPs)
	if i == maxQPs {
		return 0, nil, fmt.Errorf("%w: more than %d queue pairs (-q)", perftest.ErrProtocol, maxQPs)
	}
	qp, err := v.s.AddQP()
	if err != nil {
		return 0, nil, err
	}
	v.s.Peer = append(v.s.Peer, exchange.QP{})
	return i, qp, v.postRecvs(i, recvDepth)
}

// postRecvs posts n receives on queue pair i, all of them with the same buffer. The caller holds
// mu.
func (v *serverSession) postRecvs(i, n int) error {
	var wrs [perf.MaxBatch]roce.RecvWR
	sge := []roce.SGE{v.s.MR.SGE(v.s.In(i)+v.bytes, v.bytes)}
	for n > 0 {
		k := min(n, len(wrs))
		for j := range k {
			wrs[j] = roce.RecvWR{ID: perf.RecvID(i), SGEs: sge}
		}
		if err := v.s.QPs[i].PostRecv(wrs[:k]...); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

// Sync implements perftest.Host. A barrier may end a run. Sync returns when the message handler has
// handled the messages that the client sent before the barrier. The client sends further ones when
// the barrier is answered.
func (v *serverSession) Sync() error {
	if err := v.sync(); err != nil {
		return err
	}
	v.passed.Add(1)
	v.wake <- struct{}{}
	select {
	case <-v.handled:
	case <-v.deaf:
	}
	return nil
}

func (v *serverSession) sync() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.syncs++
	v.barrier.Store(time.Now().UnixNano())
	if v.refused != nil {
		return v.refused
	}
	if v.syncs == 1 {
		if err := v.begin(); err != nil {
			return err
		}
	}
	if v.lastBarrier() {
		v.disconnect()
	}
	want := v.server.Want
	if v.syncs == latencySyncs && len(v.peers) == 1 &&
		(want == nil || want.Operation.Reply != perf.ReplyNone) {
		v.memory = v.watchedMemory()
		close(v.ready)
	}
	return nil
}

// watchedMemory returns a watcher for the memory that write-lat's messages go to, or nil if it is
// another test. The caller holds mu, and the client waits.
func (v *serverSession) watchedMemory() *writeWatcher {
	size, in := v.server.Size, v.s.In(0)
	switch w := v.server.Want; {
	case size > v.bytes:
		return nil
	case w != nil && w.Operation.Reply != perf.ReplyWrite:
		return nil
	// Clients that use READs or atomics announce it in their key; counting atomics would look like
	// messages of one byte. Clients that use SENDs may have no key for their memory.
	case w == nil && (v.peers[0].OutReads > 1 || v.peers[0].RKey == 0 || !untouched(v.s.MR, in)):
		return nil
	}
	return newWriteWatcher(v.s.MR, in, v.bytes, size)
}

// begin calls Started when all queue pairs of the client are known. The caller holds mu.
func (v *serverSession) begin() error {
	v.params = &perf.Params{
		Op: "perftest", QPs: len(v.peers), Bytes: v.bytes, Depth: perf.DefaultDepth,
		Operation: &perf.Operation{Title: "perftest"},
	}
	if w := v.server.Want; w != nil {
		p := *w
		p.QPs = len(v.peers)
		v.params = &p
	}
	if v.server.Started != nil {
		if err := v.server.Started(v.params, v.s, v.s.Peer); err != nil {
			return err
		}
	}
	v.begun = true
	return nil
}

// Report implements perftest.Host. The client of a test with one direction ignores the report.
func (v *serverSession) Report() perftest.Report { return perftest.Report{} }

// Reported implements perftest.Host. The report contains what the client of a one-sided bandwidth
// test measured, in the unit of its flags. The server's user must have given the same flag.
func (v *serverSession) Reported(r perftest.Report) {
	v.mu.Lock()
	v.reported = true
	v.mu.Unlock()
	if r.Check() != nil {
		return
	}
	c := &perf.BandwidthColumns{
		Peak: cli.Round(r.Peak, 3), Average: cli.Round(r.Average, 3),
		MsgRate: cli.Round(r.MsgRate, 6),
		Unit:    perf.UnitMB,
	}
	if v.server.Gbits {
		c.Unit = perf.UnitGb
	}
	v.finished(int(r.Bytes), int64(r.Iterations), c, nil)
}

// finished calls Finished with a result.
func (v *serverSession) finished(bytes int, n int64, bw *perf.BandwidthColumns,
	lat *perf.LatencyColumns) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.params == nil || v.server.Finished == nil {
		return
	}
	v.server.Finished(v.params, v.s, &perf.Row{
		Op: v.params.Op, Datapath: v.s.Dev.Info().Datapath, PathMTU: v.mtu,
		AskedMTU: v.params.ReducedMTU(v.mtu),
		QPs:      v.params.QPs, Bytes: bytes, Iterations: n, BandwidthColumns: bw,
		LatencyColumns: lat,
	})
}
