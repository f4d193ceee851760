package loop

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/internal/clock"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

const (
	memSize   = 1 << 16
	memAccess = mr.LocalWrite | mr.RemoteWrite | mr.RemoteRead
)

// side is a loop with an engine and one of each object.
type side struct {
	*Loop
	link *loopback.Link
	cq   *qp.CQ
	qp   *qp.QP
	mem  []byte
	mr   *mr.MR
}

// noHost is a Host without any work.
type noHost struct{}

func (noHost) HandleQP1(qp.Time, *bth.Packet) {}
func (noHost) Work(qp.Time) int               { return 0 }
func (noHost) NextTimeout() (qp.Time, bool)   { return 0, false }
func (noHost) HandleEvent(qp.Time, qp.Event)  {}

// pairConfig holds the parameters of newPair.
type pairConfig struct {
	link loopback.Config
	spin time.Duration
	wrap func(i int, p driver.Port) driver.Port // nil: the link's own port

	selective bool // selective repeat, with a fixed window of 1024 packets
	runs      bool // the engine knows that the port sends runs
}

// newPair creates two loops with manual progress and a connected RC QP each. They run in virtual
// time, but with everything that is otherwise enabled only in real time: receive coalescing,
// immediate replies and delayed release of frames.
func newPair(t *testing.T, c pairConfig) (a, b *side) {
	t.Helper()
	c.link.Virtual = true
	link, err := loopback.NewLink(c.link)
	must(t, err)
	var s [2]*side
	for i := range s {
		s[i] = newSide(t, link, i, &c)
	}
	for i := range s {
		s[i].connect(t, s[1-i], i, c.selective)
	}
	return s[0], s[1]
}

func newSide(t *testing.T, link *loopback.Link, i int, c *pairConfig) *side {
	t.Helper()
	random := rand.New(rand.NewPCG(1, uint64(i))).Uint64
	table, err := mr.NewTable(mr.Config{Rand: random})
	must(t, err)
	config := qp.Config{MRs: table, Rand: random, Runs: c.runs}
	if c.selective {
		config.Congestion, config.MaxWindow = qp.CongestionNone, 1024
	}
	eng, err := qp.NewEngine(config)
	must(t, err)
	var port driver.Port = link.Port(i)
	if c.wrap != nil {
		port = c.wrap(i, port)
	}
	l := New(Config{Port: port, Engine: eng, Host: noHost{}, Manual: true, Spin: c.spin,
		Clock: link.Now})
	l.ticks = clock.NewPlain(link.Now)
	l.SetLocal([]bth.GID{gidOf(link, i)}, NewSources(link.Port(i).Addrs(), nil))
	t.Cleanup(func() { must(t, l.Stop()) })

	s := &side{Loop: l, link: link, mem: make([]byte, memSize)}
	pd, err := table.AllocPD()
	must(t, err)
	s.mr, err = table.Register(pd, s.mem, 0, memAccess)
	must(t, err)
	s.cq, err = qp.NewCQ(512)
	must(t, err)
	s.qp, err = eng.CreateQP(qp.InitAttr{
		Type: qp.RC, PD: pd, SendCQ: s.cq, RecvCQ: s.cq, SQDepth: 256, RQDepth: 256, MaxSendSGE: 1,
		MaxRecvSGE: 1,
	})
	must(t, err)
	return s
}

func gidOf(link *loopback.Link, i int) bth.GID {
	return bth.GIDFromAddr(link.Port(i).Addrs()[0].Addr())
}

// connect brings the QP of side i to RTS.
func (s *side) connect(t *testing.T, peer *side, i int, selective bool) {
	t.Helper()
	toRTS(t, s.Loop, s.link, i, s.qp, qp.Attr{PathMTU: 1024, DestQPN: peer.qp.QPN(),
		Selective: selective})
}

// toRTS brings a QP of side i to RTS. a has the path MTU, the number of the peer's QP, the class,
// and whether to use selective repeat.
func toRTS(t testing.TB, l *Loop, link *loopback.Link, i int, q *qp.QP, a qp.Attr) {
	t.Helper()
	a.Path = frame.NewPath(&frame.Address{
		SrcMAC: link.Port(i).Info().MAC, DstMAC: link.Port(1 - i).Info().MAC,
		Src: gidOf(link, i), Dst: gidOf(link, 1-i), SrcPort: 0xc000, HopLimit: 64,
	})
	toRTSOverPath(t, l, q, a)
}

// toRTSOverPath does the same over the path in a.
func toRTSOverPath(t testing.TB, l *Loop, q *qp.QP, a qp.Attr) {
	t.Helper()
	a.PKey, a.Access = bth.DefaultPKey, mr.RemoteWrite|mr.RemoteRead
	a.MaxDestRdAtomic, a.MinRNRTimer = 16, 12
	a.Timeout, a.RetryCnt, a.RNRRetry, a.MaxRdAtomic = 17, 7, 7, 16
	for _, step := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{
		{qp.Init, qp.AttrPKey | qp.AttrAccess | qp.AttrSelective | qp.AttrClass},
		{qp.RTR, qp.AttrPath | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN |
			qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer},
		{qp.RTS, qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry |
			qp.AttrMaxRdAtomic},
	} {
		a.State = step.state
		must(t, q.Modify(l.now(), &a, step.mask|qp.AttrState))
	}
}

// write posts an RDMA WRITE of n bytes to the start of the peer's memory.
func (s *side) write(t *testing.T, peer *side, n int, flags qp.SendFlags) {
	t.Helper()
	s.writeQuietly(t, peer, n, flags)
	s.Posted(s.qp)
}

// writeQuietly is write without a call of Loop.Posted.
func (s *side) writeQuietly(t *testing.T, peer *side, n int, flags qp.SendFlags) {
	t.Helper()
	_, err := s.qp.Post([]qp.SendWR{{
		Op: qp.OpWrite, Flags: flags,
		SGEs: []qp.SGE{{Length: uint32(n), LKey: bth.LKey(s.mr.LKey())}},
		RKey: bth.RKey(peer.mr.RKey()),
	}})
	must(t, err)
}

// sent returns the number of packets that are not ACKs.
func (s *side) sent() uint64 {
	c := s.eng.Counters()
	return c.SentPkts - c.SentAcks
}

// stepBoth runs a step of both sides, and advances the time.
func stepBoth(a, b *side, tick time.Duration) {
	a.TryStep()
	b.TryStep()
	a.link.Advance(tick)
}

// driveUntil runs steps of both sides, and advances the time, until cond is true.
func driveUntil(t *testing.T, a, b *side, cond func() bool) {
	t.Helper()
	const (
		tick  = 100 * time.Nanosecond
		limit = time.Second // virtual
	)
	for passed := time.Duration(0); !cond(); passed += tick {
		stepBoth(a, b, tick)
		if passed > limit {
			t.Fatalf("condition not met after %v of virtual time", limit)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
