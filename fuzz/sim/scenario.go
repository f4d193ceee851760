package sim

import (
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Limits of a scenario.
const (
	maxConns     = 6
	maxRebirths  = 2       // connections created again after a failure
	bigOp        = 4 << 20 // bytes of the largest operation
	cqDepth      = 1 << 14
	maxStall     = 10 * time.Millisecond // a host that does not run
	maxFlap      = 3 * time.Millisecond  // a link that is down
	smallestPath = bth.MTU(256)
)

// scenario is everything that is decided before the first packet.
type scenario struct {
	seed    uint64
	linkMTU int
	queue   int
	poison  bool
	window  int
	cpu     int64 // maximum ns per step
	stalls  bool  // hosts stop running for a while
	flaps   bool  // the link goes down for a moment
	crimes  bool
	drains  bool // send queues go through SQD
	clean   bool // a perfect link and no crime: nothing may be sent twice
	plans   [2]loopback.Plan
	necks   [2]*loopback.Bottleneck // towards each host; nil: none
	reorder [2]int                  // Expert.MaxReorderMemory of each host; 0: the default
	classes classPlan
	conns   []connConfig
}

// connConfig is one connection: two QPs, each with its share of operations.
type connConfig struct {
	typ     roce.QPType
	gid     int // index: link-local, IPv4, IPv6
	depth   [2]int
	recvs   [2]int
	inline  int
	sigAll  bool
	srq     [2]bool
	ops     [2]int
	budget  int // bytes that each side may move
	largest int // bytes of one operation
	slot    int // bytes of the largest SEND
	options [2]roce.ConnectOptions

	goBackN    [2]bool // refuses selective repeat
	congestion [2]roce.CongestionControl
	rate       [2]uint64 // bytes per second; 0: no limit
	burst      [2]int
}

// pick returns one of the values.
func pick[T any](r *rand.Rand, v ...T) T { return v[r.IntN(len(v))] }

// oneIn is true with probability 1/n.
func oneIn(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func drawScenario(seed uint64) scenario {
	r := rand.New(rand.NewPCG(seed, 1))
	sc := scenario{
		seed:    seed,
		linkMTU: pick(r, 400, 600, 1104, 1108, 1500, 2128, 4176, 4200, 9000),
		queue:   pick(r, 64, 256, 1024, 1024),
		poison:  oneIn(r, 10),
		window:  pick(r, 0, 0, 2, 8, 64, 1024),
		cpu:     pick(r, int64(2), 500, 500, 3000),
		stalls:  oneIn(r, 4),
		flaps:   oneIn(r, 10),
		crimes:  oneIn(r, 3),
		drains:  oneIn(r, 5),
	}
	level := r.IntN(7)
	for i := range sc.plans {
		sc.plans[i] = drawPlan(r, level)
	}
	if level == 0 {
		sc.clean = true
		sc.stalls, sc.flaps, sc.crimes = false, false, false
	}
	big := oneIn(r, 24)
	n := 1 + r.IntN(maxConns)
	if big {
		n = 1 + r.IntN(2)
	}
	for range n {
		sc.conns = append(sc.conns, drawConn(r, &sc, big, level))
	}
	drawNetwork(&sc)
	drawClasses(&sc)
	return sc
}

// drawPlan draws the faults of one direction. Level 0 is a perfect link.
func drawPlan(r *rand.Rand, level int) (p loopback.Plan) {
	upTo := func(most float64) float64 { return most * r.Float64() }
	switch level {
	case 0:
		return p
	case 1:
		p.Loss = upTo(0.01)
	case 2: // one kind, strong
		*pick(r, &p.Loss, &p.Duplicate, &p.Reorder, &p.Corrupt) = upTo(0.2)
	case 3:
		p.Loss, p.Duplicate, p.Reorder, p.Corrupt = upTo(0.03), upTo(0.03), upTo(0.03), upTo(0.01)
	case 4, 5:
		p.Loss, p.Duplicate, p.Reorder, p.Corrupt = upTo(0.2), upTo(0.2), upTo(0.2), upTo(0.05)
	}
	p.Delay = time.Duration(r.Int64N(int64(pick(r, 2, 20, 200)) * int64(time.Microsecond)))
	if oneIn(r, 2) {
		p.Jitter = p.Delay / 2
	}
	if oneIn(r, 2) {
		p.Hold = time.Duration(1+r.Int64N(500)) * time.Microsecond
	}
	if oneIn(r, 4) {
		p.Bandwidth = pick(r, int64(1e9), 10e9, 100e9)
	}
	if oneIn(r, 6) {
		p.PauseEvery = time.Duration(1+r.Int64N(20)) * time.Millisecond
		p.PauseFor = time.Duration(r.Int64N(5000)+1) * time.Microsecond
	}
	return p
}

func drawConn(r *rand.Rand, sc *scenario, big bool, level int) connConfig {
	mtu := min(pick(r, bth.MTU(256), 512, 1024, 2048, 4096),
		max(bth.MTUFor(sc.linkMTU), smallestPath))
	packets := 60 + r.IntN(300) // per side; go-back-N multiplies them under loss
	if level >= 4 {
		packets /= 3
	}
	c := connConfig{
		typ:     pick(r, roce.RC, roce.RC, roce.RC, roce.RC, roce.UC, roce.UD),
		gid:     r.IntN(3),
		inline:  pick(r, -1, 16, 64, 200),
		sigAll:  oneIn(r, 4),
		budget:  packets * int(mtu),
		largest: min(64<<10, packets*int(mtu)/3),
		slot:    pick(r, 1, 100, 1000, 5000, 20000),
	}
	if big {
		c.typ = roce.RC
		c.largest = bigOp
		c.budget = bigOp + bigOp/2
		c.slot = pick(r, 5000, 20000, 300000)
		mtu = max(mtu, min(1024, bth.MTUFor(sc.linkMTU)))
	}
	for i := range 2 {
		c.depth[i] = pick(r, 1, 2, 5, 16, 64)
		c.recvs[i] = pick(r, 1, 3, 16, 32)
		c.srq[i] = oneIn(r, 4)
		c.ops[i] = r.IntN(50)
		c.options[i] = roce.ConnectOptions{
			MTU: mtu, Timeout: 13 + r.IntN(3), MinRNRTimer: 1 + r.IntN(14),
			MaxRdAtomic: pick(r, 1, 2, 16), MaxDestRdAtomic: 16,
			PathOptions: roce.PathOptions{TrafficClass: uint8(r.Uint32()),
				FlowLabel: r.Uint32() & 0xfffff},
		}
		if oneIn(r, 8) {
			c.options[i].MinRNRTimer = -1 // code 0: 655 ms
		}
	}
	if sc.crimes && c.typ == roce.RC && oneIn(r, 8) {
		c.options[r.IntN(2)].RNRRetries = 1 + r.IntN(6)
	}
	// No side may have more READs outstanding than the other serves.
	if oneIn(r, 2) {
		for i := range 2 {
			c.options[i].MaxDestRdAtomic = c.options[1-i].MaxRdAtomic
		}
	}
	return c
}
