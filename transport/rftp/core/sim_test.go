package core

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/transport/internal/events"
)

// The simulation runs two machines in virtual time, one scenario per seed. Both are source and
// sink. The network delays messages; a data QP delivers in order, and may fail so that WRITEs or
// their acknowledgments are lost. Programs open, end and abort sessions, hold blocks for a while
// and return them in any order. Some hosts die. The model of both programs and of the memory checks
// that
//
//   - free, granted and ready blocks of a sink are all its blocks;
//   - no block is granted while the peer may write it or the program reads it;
//   - the program gets each block of a session that ends once, complete and unchanged;
//   - every request is answered;
//   - every session ends, or the connection ends with an error, in bounded time.
var (
	simSeed  = flag.Int64("core.seed", -1, "run the scenario of this seed alone, and print it")
	simSeeds = flag.Uint64("core.n", 600, "run this many seeds")
)

const (
	ms      = Time(1e6)
	simKey  = 0x1234
	simBase = 1 << 32
)

// simOut is the model's view of a session of the source.
type simOut struct {
	*Outgoing
	left   int // blocks to be sent
	sent   int
	abort  bool // the program aborts it
	refuse bool // the peer's program refuses it
}

// simIn is the model's view of a session of the sink.
type simIn struct {
	got     map[uint32]bool
	over    bool
	refused bool
}

type simWrite struct {
	block, qp int
	addr      uint64
	imm       uint32
	with      bool
	data      []byte
}

// simQP is one direction of a data QP.
type simQP struct {
	free   Time // when the last WRITE arrives
	acked  Time
	failed bool // the source's side is in the error state
	closed bool // the sink's side is
	flight []int
}

type simHost struct {
	s      *sim
	id     int
	peer   *simHost
	m      *Machine
	dead   bool
	pool   []byte // of the sink
	stride int
	blocks int
	out    [][]byte // blocks of the source: header and payload
	qps    []simQP
	ctl    Time // when the last control message arrives
	sendsQ Time
	outs   []*simOut
	ins    map[uint32]*simIn
	opened uint32 // last session of the peer
	held   []Item
	toOpen int
	msgs   int // messages to send
	gotMsg int
	lastID uint32
	timer  Time
}

type sim struct {
	t     testing.TB
	rng   *rand.Rand
	now   Time
	q     events.Queue[Time]
	hosts [2]*simHost
	cfg   Config
	delay Time
	trace bool
	seed  uint64
	fault string // what the scenario breaks
}

func (s *sim) at(d Time, f func()) {
	s.q.Add(s.now+d, f)
}

func (s *sim) log(format string, args ...any) {
	if s.trace {
		s.t.Logf("%9.3fms "+format, append([]any{float64(s.now) / 1e6}, args...)...)
	}
}

func (s *sim) failf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("seed %d (%s): %s", s.seed, s.fault, fmt.Sprintf(format, args...))
}

// jitter returns a delay on the way.
func (s *sim) jitter() Time { return s.delay + Time(s.rng.Int64N(int64(s.delay)+1)) }

func newSim(t testing.TB, seed uint64, trace bool) *sim {
	r := rand.New(rand.NewPCG(seed, 19))
	s := &sim{t: t, rng: r, trace: trace, seed: seed, now: 1, delay: Time(1+r.Int64N(30))*ms/10 + 1}
	s.cfg = Config{
		Mode: Mode(r.IntN(int(numModes))), BlockSize: MinBlockSize + r.Uint32N(64),
		QPs: 1 + r.IntN(4), SourceBlocks: 1 + r.IntN(12), Sessions: 1 + r.IntN(5),
		Silence: 2000 * ms,
	}
	if r.IntN(4) == 0 {
		s.cfg.QPDepth = 1 + r.IntN(3)
	}
	if r.IntN(4) == 0 {
		s.cfg.Rate = 10_000 + r.Uint64N(1e6)
	}
	for i := range s.hosts {
		s.hosts[i] = s.host(i)
	}
	s.hosts[0].peer, s.hosts[1].peer = s.hosts[1], s.hosts[0]
	s.faults()
	return s
}

func (s *sim) host(id int) *simHost {
	r := s.rng
	m, err := New(s.now, s.cfg)
	if err != nil {
		s.failf("New() = %v", err)
	}
	if s.rng.IntN(2) == 0 {
		m.SetBacklog(1 + s.rng.IntN(4))
	}
	h := &simHost{s: s, id: id, m: m, qps: make([]simQP, s.cfg.QPs), ins: map[uint32]*simIn{},
		blocks: 1 + r.IntN(12), stride: int(s.cfg.BlockSize) + HeaderLen + r.IntN(32),
		toOpen: r.IntN(8), msgs: r.IntN(100), timer: Never}
	if h.id == 0 && h.toOpen == 0 {
		h.toOpen = 1
	}
	h.pool = make([]byte, h.blocks*h.stride)
	h.out = make([][]byte, s.cfg.SourceBlocks)
	for i := range h.out {
		h.out[i] = make([]byte, HeaderLen+int(s.cfg.BlockSize))
	}
	accept := func() {
		p := Pool{Addr: simBase, Stride: uint64(h.stride), Key: simKey, Blocks: h.blocks}
		if err := m.Accept(p); err != nil && m.Err() == nil {
			s.failf("Accept() = %v", err)
		}
		h.pump()
	}
	s.at(Time(r.Int64N(int64(20*ms))), accept)
	s.at(0, func() { h.program() })
	return h
}

// faults chooses what breaks.
func (s *sim) faults() {
	r := s.rng
	switch r.IntN(6) {
	case 0:
		s.fault = "a host dies"
		s.at(Time(r.Int64N(int64(200*ms))), func() { s.hosts[r.IntN(2)].dead = true })
	case 1, 2, 3:
		s.fault = "data QPs fail"
		for range 1 + r.IntN(s.cfg.QPs) {
			h, qp := s.hosts[r.IntN(2)], r.IntN(s.cfg.QPs)
			s.at(Time(r.Int64N(int64(200*ms))), func() { h.failQP(qp) })
		}
	}
}

// failQP makes the source's side of a QP fail. WRITEs in flight arrive or not.
func (h *simHost) failQP(qp int) {
	q := &h.qps[qp]
	if q.failed || h.dead {
		return
	}
	q.failed = true
	h.s.log("host %d: data QP %d fails with %v in flight", h.id, qp, q.flight)
	h.m.QPFailed(qp, errors.New("retries exhausted"))
	h.pump()
}

// pump does what the machine wants.
func (h *simHost) pump() {
	if h.dead {
		return
	}
	var a Action
	for h.m.Poll(h.s.now, &a) {
		h.do(&a)
		h.check()
	}
	if t := h.m.Timeout(); t != h.timer && t != Never {
		h.timer = t
		h.s.at(max(t-h.s.now, 0), func() {
			if h.timer == t && !h.dead {
				h.timer = Never
				h.m.HandleTimeout(h.s.now)
				h.pump()
			}
		})
	}
}

func (h *simHost) do(a *Action) {
	s := h.s
	switch a.Kind {
	case DoControl:
		msg := bytes.Clone(a.Msg)
		var c control
		if err := c.parse(msg); err != nil {
			s.failf("a message that the peer does not take: %v", err)
		}
		s.log("host %d: %v %d bytes", h.id, c.typ, len(c.body))
		h.ctl = max(h.ctl, s.now+s.jitter())
		s.at(h.ctl-s.now, func() {
			if h.peer.dead {
				return
			}
			h.peer.m.HandleControl(s.now, msg)
			h.peer.pump()
			h.sendsQ = max(h.sendsQ, s.now+s.jitter())
			s.at(h.sendsQ-s.now, func() {
				h.m.ControlDone()
				h.pump()
			})
		})
	case DoWrite:
		h.write(a)
	case DoRead:
		h.arrived(a.Block, a.Imm, 0)
	case DoCloseQP:
		s.log("host %d: closes data QP %d", h.id, a.QP)
		h.peer.qps[a.QP].closed = true
		// The QP of this side's source is the same one.
		h.qps[a.QP].failed = true
		h.m.QPFailed(a.QP, errors.New("closed by the peer"))
		h.m.QPClosed(a.QP)
	}
}

func (h *simHost) write(a *Action) {
	s, q := h.s, &h.qps[a.QP]
	if s.rng.IntN(50) == 0 {
		h.m.Posted(a.Block, false)
		return
	}
	h.m.Posted(a.Block, true)
	if q.failed {
		s.failf("a WRITE on data QP %d, which has failed", a.QP)
	}
	w := simWrite{block: a.Block, qp: a.QP, addr: a.Addr, imm: a.Imm, with: a.WithImm,
		data: bytes.Clone(h.out[a.Block][:a.Len])}
	if a.Key != simKey {
		s.failf("the key is %#x", a.Key)
	}
	q.flight = append(q.flight, a.Block)
	q.free = max(q.free, s.now+s.jitter())
	s.at(q.free-s.now, func() { h.deliver(&w) })
}

// deliver stores a WRITE in the peer's memory.
func (h *simHost) deliver(w *simWrite) {
	s, q, p := h.s, &h.qps[w.qp], h.peer
	if q.closed || p.dead {
		return
	}
	if q.failed && s.rng.IntN(2) == 0 {
		q.closed = true // nothing arrives after a lost WRITE
		return
	}
	at := int(w.addr-simBase) / p.stride
	if st := p.m.snk.blocks[at].state; st != Granted {
		s.failf("a WRITE into block %d of host %d, which is %v", at, p.id, st)
	}
	copy(p.pool[w.addr-simBase:], w.data)
	if w.with {
		p.arrived(at, w.imm, uint32(len(w.data)))
	}
	q.acked = max(q.acked, s.now+s.jitter())
	s.at(q.acked-s.now, func() {
		if q.failed || h.dead {
			return // the acknowledgment is lost
		}
		q.flight = q.flight[1:]
		h.m.WriteDone(w.block)
		h.pump()
	})
	p.pump()
}

func (h *simHost) arrived(block int, id, length uint32) {
	var hd Header
	hd.Parse(h.pool[block*h.stride:])
	h.m.Arrived(h.s.now, id, length, &hd)
}

// check checks the invariants of both pools.
func (h *simHost) check() {
	k := &h.m.snk
	counts := map[State]int{}
	for i := range k.blocks {
		counts[k.blocks[i].state]++
	}
	if counts[Free] != k.free.len() || counts[Granted] != k.granted ||
		counts[Ready] != k.complete || k.free.len()+k.granted+k.complete != len(k.blocks) {
		h.s.failf("host %d: %v, but %d free, %d granted, %d ready of %d", h.id, counts,
			k.free.len(), k.granted, k.complete, len(k.blocks))
	}
	if k.allowed > k.free.len() || k.allowed < 0 {
		h.s.failf("host %d: %d grants allowed, %d blocks free", h.id, k.allowed, k.free.len())
	}
	// The peer never has more grants of a block than one that it has not used.
	seen := map[int]bool{}
	c := &h.m.src.credits
	for i := range c.len() {
		g := c.v[(c.head+i)%len(c.v)]
		if seen[index(g.id)] {
			h.s.failf("host %d: block %d granted twice", h.id, index(g.id))
		}
		seen[index(g.id)] = true
		if b := &h.peer.m.snk.blocks[index(g.id)]; b.state != Granted && h.m.err == nil {
			h.s.failf("host %d: has a credit for block %d, which is %v", h.id, index(g.id), b.state)
		}
	}
}
