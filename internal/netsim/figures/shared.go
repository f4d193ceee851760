package figures

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// The bottleneck of most experiments, and the round trip through it.
const (
	sharedBits = 25 * gbps
	sharedRTT  = 100 * us
	// access is how much faster than the bottleneck the links of the senders are. If they were not,
	// a flow that has the bottleneck for itself would fill the queue of its own host, where nothing
	// is dropped.
	access = 4
	// jitter is a random delay of up to so many packets of the bottleneck. Without it packets would
	// arrive in step with the departures from the queue, and the same flows would always find it
	// full (Floyd and Jacobson, On Traffic Phase Effects in Packet-Switched Gateways, 1991).
	jitter = 3
	// bdp is the bandwidth-delay product in bytes.
	bdp = sharedBits / 8 * int64(sharedRTT) / int64(time.Second)
)

// Targets of fairness.
const (
	fairIndex   = 0.95    // Jain's index of equal flows
	incastShare = 0.95    // of the link
	incastLeast = 1.0 / 3 // of the fair share
	tcpLow      = 1.0 / 3 // of what a QP and a TCP flow have together
	tcpHigh     = 2.0 / 3
)

// queue is a bottleneck's queue, and the algorithm of congestion control of the QPs that share it.
type queue struct {
	suffix, about    string
	bytes            int
	markMin, markMax int // thresholds of ECN marks in bytes; 0 means none
	markChance       float64
	dcqcn            bool
}

// queues returns the queues with which flows compete: with space for a bandwidth-delay product, an
// eighth of it, both with an ECN threshold, and one for DCQCN with the thresholds of its paper (Zhu
// et al., SIGCOMM 2015, section 5.2).
func queues() []queue {
	const full, short = int(bdp), int(bdp) / 8
	return []queue{
		{suffix: "", about: "queue of 1 BDP", bytes: full},
		{suffix: "_short", about: "queue of 1/8 BDP", bytes: short},
		{suffix: "_ecn", about: "queue of 1 BDP, ECN", bytes: full,
			markMin: full / 5, markMax: full / 5, markChance: 1},
		{suffix: "_short_ecn", about: "queue of 1/8 BDP, ECN", bytes: short,
			markMin: short / 2, markMax: short / 2, markChance: 1},
		{suffix: "_dcqcn", about: "queue of 4 BDP, ECN, DCQCN", bytes: 4 * full,
			markMin: 5e3, markMax: 200e3, markChance: 0.01, dcqcn: true},
	}
}

func (q *queue) bottleneck() *loopback.Bottleneck {
	return &loopback.Bottleneck{Bandwidth: sharedBits, Queue: q.bytes,
		MarkMin: q.markMin, MarkMax: q.markMax, MarkChance: q.markChance}
}

// low returns the target of a figure. Only the default algorithm has targets.
func (q *queue) low(target float64) float64 {
	if q.dcqcn {
		return 0
	}
	return target
}

// shared returns the experiments with a bottleneck.
func shared() (list []experiment) {
	for _, q := range queues() {
		list = append(list, fair8(q))
	}
	list = append(list, oneAgainst8(), shortAndLong())
	for _, q := range queues() {
		list = append(list, incast(q))
	}
	return append(list, nextToTCP()...)
}

// stagger is the time between the starts of senders, so that they do not act in step.
const stagger = 13 * us

// senders returns n senders that write.
func senders(n int) (list []netsim.Sender) {
	for i := range n {
		list = append(list, netsim.Sender{Op: roce.OpWrite, Size: load64K.size,
			Depth: load64K.depth, Start: time.Duration(i) * stagger,
			Plan: accessPlan(sharedBits, sharedRTT)})
	}
	return list
}

// accessPlan returns the link of a sender to the switch.
func accessPlan(bits int64, rtt time.Duration) loopback.Plan {
	packet := time.Duration(int64(pathMTU) * 8 * int64(time.Second) / bits)
	return loopback.Plan{Bandwidth: access * bits, Delay: rtt / 2, Jitter: jitter * packet}
}

func sharedScenario(list []netsim.Sender, q queue) netsim.Scenario {
	var o []roce.Option
	if q.dcqcn {
		o = append(o, roce.WithCongestionControl(roce.CongestionDCQCN))
	}
	return netsim.Scenario{Options: o, Senders: list, Bottleneck: q.bottleneck(), Frames: 2048,
		Warmup: 100 * ms, Time: 300 * ms, Connect: roce.ConnectOptions{MTU: pathMTU}}
}

func fair8(q queue) experiment {
	return experiment{
		name: "fair_8" + q.suffix, about: "8 equal QPs on 8 hosts, " + q.about, bits: sharedBits,
		scenario: sharedScenario(senders(8), q),
		figures: []figure{
			{name: "fair_8" + q.suffix + "_jain", unit: unitIndex, value: (*netsim.Result).Jain,
				low: q.low(fairIndex)},
			{name: "fair_8" + q.suffix + "_share", unit: unitBW},
		},
	}
}

// oneAgainst8 has one QP on one host and eight on another. The figure is the rate of the one,
// relative to the mean of all.
func oneAgainst8() experiment {
	list := senders(2)
	list[1].QPs = 8
	return experiment{
		name: "fair_1v8", about: "1 QP against 8 of another host: its rate to the mean",
		bits: sharedBits, scenario: sharedScenario(list, queues()[0]),
		figures: []figure{
			{name: "fair_1v8", unit: unitRatio,
				value: func(r *netsim.Result) float64 { return r.Share(0) * 9 }},
			{name: "fair_1v8_jain", unit: unitIndex, value: (*netsim.Result).Jain},
		},
	}
}

// shortAndLong has two flows with different round-trip times. The figure is the rate of the long
// one relative to that of the short one.
func shortAndLong() experiment {
	list := senders(2)
	const factor = 5
	list[1].Plan.Delay *= factor
	return experiment{
		name: "rtt_short_long",
		about: fmt.Sprintf("RTT %v against %v: rate of the long one to the short one", sharedRTT,
			sharedRTT*factor),
		bits: sharedBits, scenario: sharedScenario(list, queues()[0]),
		figures: []figure{{name: "rtt_short_long", unit: unitRatio,
			value: func(r *netsim.Result) float64 {
				return r.Flows[1].Bits / max(1, r.Flows[0].Bits)
			}}},
	}
}

func incast(q queue) experiment {
	return experiment{
		name: "incast_32" + q.suffix, about: "32 hosts to 1, " + q.about, bits: sharedBits,
		scenario: sharedScenario(senders(32), q),
		figures: []figure{
			{name: "incast_32" + q.suffix + "_share", unit: unitBW, low: q.low(incastShare)},
			{name: "incast_32" + q.suffix + "_least", unit: unitRatio,
				value: (*netsim.Result).Least, low: q.low(incastLeast)},
			{name: "incast_32" + q.suffix + "_jain", unit: unitIndex,
				value: (*netsim.Result).Jain},
		},
	}
}

// nextToTCP returns experiments with one QP and one TCP CUBIC flow, whose segments are as long as
// the path MTU. The figure is what the QP has of the sum.
func nextToTCP() (list []experiment) {
	for _, n := range []struct {
		suffix, about string
		bits          int64
		rtt           time.Duration
		queue         int64 // in bandwidth-delay products
		warmup, time  time.Duration
	}{
		{"", "1 Gb/s, 10 ms", gbps, 10 * ms, 1, 10 * time.Second, 30 * time.Second},
		{"_deep", "1 Gb/s, 10 ms, queue of 4 BDP", gbps, 10 * ms, 4, 10 * time.Second,
			30 * time.Second},
		{"_10g_100us", "10 Gb/s, 100 us", 10 * gbps, 100 * us, 1, 200 * ms, 800 * ms},
	} {
		plan := accessPlan(n.bits, n.rtt)
		name := "tcp_cubic" + n.suffix + "_share"
		list = append(list, experiment{
			name: name, about: "1 QP next to a TCP CUBIC flow: its part; " + n.about,
			bits: float64(n.bits),
			scenario: netsim.Scenario{
				Senders: []netsim.Sender{
					{Op: roce.OpWrite, Size: load64K.size, Depth: load64K.depth, Plan: plan},
					{TCP: &netsim.TCP{MSS: int(pathMTU)}, Plan: plan},
				},
				Bottleneck: &loopback.Bottleneck{Bandwidth: n.bits,
					Queue: int(n.queue * n.bits / 8 * int64(n.rtt) / int64(time.Second))},
				Frames: 1 << 13, Warmup: n.warmup, Time: n.time,
				Connect: roce.ConnectOptions{MTU: pathMTU},
			},
			figures: []figure{{name: name, unit: unitRatio,
				value: func(r *netsim.Result) float64 { return r.Share(0) },
				low:   tcpLow, high: tcpHigh}},
		})
	}
	return list
}
