package rftp

import (
	"fmt"
	"slices"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/papers/rftp/live"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// Units of figures.
const (
	unitBW   = "Gb/s"
	unitTime = "ms"
)

const (
	kib  = 1 << 10
	mib  = 1 << 20
	gbps = 1_000_000_000
	us   = time.Microsecond
	ms   = time.Millisecond
)

// experiment is one simulation and the figures that are taken from it.
type experiment struct {
	name     string
	about    string
	transfer *transfer        // of blocks, or
	verbs    *netsim.Scenario // of single operations
	bits     float64          // of the link
	figures  []figure
}

// figure is one number of an experiment.
type figure struct {
	name string
	unit string
	// low and high bound the share of the goodput that is the target; 0: none.
	low, high float64
	// model is what the credits permit, in the figure's unit; 0: the link is the limit.
	model float64
	// ramp: the figure is the time to reach the full rate.
	ramp bool
}

// The paper's paths, with the usable bandwidth of its LAN.
var (
	wan = path{bits: 10 * gbps, rtt: 49 * ms}
	lan = path{bits: 25 * gbps, rtt: 25 * us}
)

const (
	wanPool  = 128 * mib // twice the bandwidth-delay product
	halfPool = 60 * mib  // 15 blocks: about the bandwidth-delay product
	lanPool  = 64 * mib
)

// streams are the numbers of data QPs of the paper.
var streams = []int{1, 8}

// suffix distinguishes figures with several data QPs.
func suffix(qps int) string {
	if qps == 1 {
		return ""
	}
	return fmt.Sprintf("_%d", qps)
}

// wanTransfers returns the transfers over the long path. They are measured after 10 s.
func wanTransfers() (list []experiment) {
	base := transfer{path: wan, block: 4 * mib, pool: wanPool, warmup: 10 * time.Second,
		time: 2 * time.Second}
	add := func(name, about string, change func(t *transfer), low, high, model float64, ramp bool) {
		for _, n := range streams {
			t := base
			t.qps = n
			change(&t)
			e := experiment{name: name + suffix(n), transfer: &t, bits: float64(t.bits),
				about: fmt.Sprintf("%s, %s", about, cli.Count(n, "stream"))}
			e.figures = []figure{{name: e.name, unit: unitBW, low: low, high: high, model: model}}
			if ramp {
				e.figures = append(e.figures,
					figure{name: rampName(e.name), unit: unitTime, ramp: true})
			}
			list = append(list, e)
		}
	}
	add("wan_default", "blocks of 4 MiB, pool of 128 MiB", func(*transfer) {}, 0.95, 0, 0, true)
	add("wan_loss_0.001", "the same, 0.001 % loss", func(t *transfer) {
		t.loss, t.time = 1e-5, 4*time.Second
	}, 0.75, 0, 0, false)
	add("wan_paper_mode", "the paper's credits", func(t *transfer) { t.mode = rftp.Paper }, 0, 0, 0,
		true)
	add("wan_default_half", "pool of 60 MiB", func(t *transfer) { t.pool = halfPool }, 0, 0, 0,
		false)
	add("wan_paper_half", "the paper's credits, pool of 60 MiB", func(t *transfer) {
		t.mode, t.pool = rftp.Paper, halfPool
	}, 0, 0, limit(halfPool, 2*wan.rtt), false)
	add("wan_on_demand", "credits on demand, 10 blocks of 1 MiB", func(t *transfer) {
		t.mode, t.block, t.pool, t.warmup = rftp.OnDemand, mib, 10*mib, time.Second
	}, 0, 0.2, limit(10*mib, wan.rtt), false)
	return append(list, ramps(base)...)
}

// rampName returns the name of the figure of the ramp of an experiment.
func rampName(name string) string {
	if name == "wan_default" {
		return "ramp_ms"
	}
	return "ramp_" + name + "_ms"
}

// limit returns the rate in Gb/s at which a pool is used once per cycle.
func limit(pool int, cycle time.Duration) float64 {
	return float64(pool) * 8 / cycle.Seconds() / gbps
}

// ramps returns transfers without congestion control, so that only the credits limit the ramp.
func ramps(t transfer) (list []experiment) {
	t.qps, t.free, t.warmup, t.time = 1, true, time.Second, 500*ms
	// One credit at first, twice as many with each cycle of two round trips.
	doublings := 0
	for n := 1; float64(n*t.block) < wan.goodput()/8*2*wan.rtt.Seconds(); n *= 2 {
		doublings++
	}
	model := map[rftp.Mode]float64{rftp.Paper: float64(doublings) * 2 * wan.rtt.Seconds() * 1e3}
	for _, m := range []rftp.Mode{rftp.Proactive, rftp.Paper} {
		t := t
		t.mode = m
		name := map[rftp.Mode]string{rftp.Proactive: "default", rftp.Paper: "paper_mode"}[m]
		list = append(list, experiment{name: "ramp_" + name, transfer: &t, bits: float64(t.bits),
			about: fmt.Sprintf("%v credits, no congestion control", m),
			figures: []figure{{name: "ramp_" + name + "_credits_ms", unit: unitTime, ramp: true,
				model: model[m]}}})
	}
	return list
}

// lanBlocks are the block sizes on the short path.
var lanBlocks = []int{64 * kib, 256 * kib, mib, 4 * mib, 16 * mib, 64 * mib}

func lanTransfers() (list []experiment) {
	for _, block := range lanBlocks {
		for _, n := range streams {
			t := &transfer{path: lan, qps: n, block: block, pool: max(lanPool, 3*block),
				warmup: 50 * ms, time: 200 * ms}
			e := experiment{name: "lan_" + sizeName(block) + suffix(n), transfer: t,
				bits: float64(t.bits), about: fmt.Sprintf("25 Gb/s, 25 us, blocks of %s, %s",
					sizeName(block), cli.Count(n, "stream"))}
			e.figures = []figure{{name: e.name, unit: unitBW}}
			list = append(list, e)
		}
	}
	return list
}

func sizeName(n int) string {
	if n >= mib {
		return fmt.Sprintf("%dMiB", n/mib)
	}
	return fmt.Sprintf("%dKiB", n/kib)
}

// The paper's comparison of operations, fio.
var (
	verbSizes  = []int{4 * kib, 16 * kib, 64 * kib, 128 * kib, mib}
	verbDepths = []int{1, 64}
	verbOps    = []roce.Op{roce.OpWrite, roce.OpSend, roce.OpRead}
	verbNames  = map[roce.Op]string{roce.OpWrite: "write", roce.OpSend: "send", roce.OpRead: "read"}
)

func verbs() (list []experiment) {
	for _, op := range verbOps {
		for _, depth := range verbDepths {
			for _, size := range verbSizes {
				name := fmt.Sprintf("fio_%s_%s_depth%d", verbNames[op], sizeName(size), depth)
				list = append(list, experiment{
					name: name, bits: float64(lan.bits),
					about: fmt.Sprintf("25 Gb/s, 25 us, %v of %s, %d outstanding",
						op, sizeName(size), depth),
					verbs: &netsim.Scenario{
						Senders: []netsim.Sender{{Op: op, Size: size, Depth: depth,
							Plan: loopback.Plan{
								Bandwidth: lan.bits, Delay: lan.rtt / 2}}},
						Warmup: 20 * ms, Time: 100 * ms,
						Connect: roce.ConnectOptions{MTU: pathMTU},
					},
					figures: []figure{{name: name, unit: unitBW}},
				})
			}
		}
	}
	return list
}

func experiments() []experiment {
	return slices.Concat(wanTransfers(), lanTransfers(), verbs())
}

// Names returns the names of all figures, in the order of the table.
func Names() (list []string) {
	for _, e := range experiments() {
		for _, f := range e.figures {
			list = append(list, f.name)
		}
	}
	return append(list, live.Names()...)
}
