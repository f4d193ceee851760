package qp

import (
	"fmt"
	"math"
)

// Congestion is an algorithm that limits what an RC QP sends. See docs/congestion.md.
type Congestion uint8

// The algorithms.
const (
	// CongestionAdaptive combines the window growth of CUBIC with a model of the path: losses that
	// the model does not explain by a full queue do not make the window smaller than the product of
	// bandwidth and delay. CNPs reduce it as in DCTCP. It is the default.
	CongestionAdaptive Congestion = iota
	// CongestionDCQCN is the algorithm of RDMA NICs (Zhu et al., SIGCOMM 2015): CNPs reduce the
	// rate.
	CongestionDCQCN
	// CongestionNone keeps the window at its maximum and ignores CNPs. Losses are repaired.
	CongestionNone
	numCongestion
)

var congestionNames = []string{"adaptive", "dcqcn", "none"}

// String returns "adaptive", "dcqcn" or "none".
func (c Congestion) String() string { return name(congestionNames, int(c)) }

// MarshalText returns the name.
func (c Congestion) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses a name.
func (c *Congestion) UnmarshalText(b []byte) (err error) {
	*c, err = ParseCongestion(string(b))
	return err
}

// ParseCongestion returns the algorithm with the given name.
func ParseCongestion(s string) (Congestion, error) {
	for i, n := range congestionNames {
		if s == n {
			return Congestion(i), nil
		}
	}
	return 0, fmt.Errorf("%w: unknown congestion control %q; use adaptive, dcqcn or none",
		ErrInvalidAttr, s)
}

// congestion is the model of the path of a QP. It is allocated when a QP has more than firstWindow
// packets in flight, loses a packet, or receives a CNP or a marked packet.
type congestion struct {
	total    uint64     // packets delivered
	minRTT   Time       // 0: no round trip was measured
	minRTTAt Time       // when it was measured
	rate     [2]float64 // largest delivery rates of this and the previous period, packets per ns
	rounds   uint8      // round trips in this period
	started  uint64     // total at the start of the RTT sample
	ended    uint64     // total at the end of the previous one
	endedAt  Time       // end of the previous one; 0: there was none

	wmax   float64 // window before the last reduction, packets
	epoch  Time    // time of the last reduction; 0: none yet
	growth uint32  // packets per round trip, times growthUnit; see window.grow

	limited bool // since the last RTT sample, the window limited what the QP sent

	lossFrom uint64 // total at the start of the period in which losses are counted
	lost     uint64 // packets lost in it
	heavy    bool   // the last period had too many losses, see lossPeriod
	shallow  uint8  // periods without the floor of loadedRTT, see shallowLoss

	alpha    float64 // fraction of the time in which the path marks packets (RFC 8257)
	cnps     uint32  // received since the last RTT sample
	reducing Time    // when CNPs reduce the window again

	pacer
	control *rateControl // CongestionDCQCN; nil until the first CNP

	pathCounts

	board *scoreboard // see selective.go; nil unless win.repairing
	lateness
}

// pathCounts are counts for PathStats.
type pathCounts struct {
	spurious, retransmits      uint64
	marked, sentCNPs, rcvdCNPs uint64
	probes                     uint32 // sent, and not reported as duplicates
}

const (
	cubicBeta  = 0.7            // RFC 9438, section 4.6
	cubicC     = 0.4            // packets per second cubed (RFC 9438, section 4.1)
	renoGrowth = 0.5            // packets per round trip below wmax (RFC 9438, section 4.3: 0.53)
	renoWindow = 32             // packets; smaller windows grow by a packet
	growthUnit = 8              // of congestion.growth, per packet
	ratePeriod = 8              // round trips
	shortRTT   = 250_000        // ns; the limit of windows for shorter ones is in bytes
	shortBytes = 1 << 20        // limit at shortRTT: 33 Gb/s. For less it is proportional
	shortLimit = 256 << 10      // bytes, the smallest limit
	loadedRTT  = 64_000         // ns; 64 packets of 4 KiB at 33 Gb/s; see floorBDP
	minRTTAge  = 10_000_000_000 // ns, as in BBR

	// Random losses do not reduce the window below the product of bandwidth and delay. If more than
	// 1 of heavyLoss packets is lost in a period of lossPeriod packets, they do: the path is
	// overloaded in a way that neither the RTT nor the delivery rate shows. Without a queue, see
	// queued, that takes more than 1 of heavyRandomLoss. They also do if the product is less than
	// minFloor packets. Such small windows fill the path in spite of random losses, and steps of a
	// packet would be too coarse for a fair share.
	//
	// A window below the product is the rate that is measured next. So without a queue, the least
	// window is 1/headroom larger than the product; otherwise losses would slowly lower both.
	lossPeriod      = 512
	heavyLoss       = 25
	heavyRandomLoss = 12
	minFloor        = 16
	headroom        = 32

	// On a path with a short round trip and a short queue, the floor of loadedRTT causes losses. If
	// more than 1 of shallowLoss packets is lost, it does not apply for shallowPeriods.
	shallowLoss    = 40
	shallowPeriods = 16

	alphaGain = 1.0 / 16 // RFC 8257, section 3.3
)

// model returns the QP's congestion state.
func (q *QP) model() *congestion {
	if !q.win.modeled {
		q.cc = new(congestion)
		q.cc.init()
		q.win.modeled = true
	}
	return q.cc
}

func (c *congestion) init() {
	*c = congestion{growth: growthUnit, alpha: 1, pathCounts: c.pathCounts, board: c.board,
		lateness: c.lateness}
}

// delivered handles n packets that were acknowledged or newly reported as held.
func (q *QP) delivered(n uint64) {
	w := &q.win
	w.probing = false
	k := uint32(min(n, maxPSNCount))
	switch {
	case w.algorithm == CongestionNone:
	case 2*(q.max-q.una+n) < uint64(w.cwnd): // it does not limit the QP (RFC 9438, section 5.8)
	case !w.modeled:
		w.grow(k, growthUnit, min(q.eng.maxWindow, DefaultWindow))
	default:
		q.cc.limited = true
		w.grow(k, q.cc.growth, q.limit())
	}
	if w.modeled {
		q.cc.total += n
	}
}

// reached ends the RTT sample if all packets up to that of the sample, which is before psn, have
// arrived.
func (q *QP) reached(now Time, psn uint64) {
	rtt := q.rec.endSample(now, psn)
	if rtt == 0 {
		return
	}
	q.eng.rtts.add(rtt)
	q.meter().addRTT(rtt)
	q.measuredRTT()
	if !q.win.modeled {
		if q.win.cwnd <= firstWindow {
			return
		}
		c := q.model()
		c.minRTT, c.minRTTAt = rtt, now
		return
	}
	q.cc.sampled(now, rtt, q.win.cwnd)
	if q.cc.minRTT < shortRTT && q.win.algorithm != CongestionNone {
		q.win.cwnd = min(q.win.cwnd, q.limit())
	}
	q.endStartup(now, rtt)
	q.setPace()
}

// endStartup ends exponential growth beyond DefaultWindow when a queue builds up (like HyStart, RFC
// 9406), before it overflows. Growth continues as in CUBIC from the middle of its curve.
func (q *QP) endStartup(now, rtt Time) {
	c, w := q.cc, &q.win
	if w.cwnd >= w.threshold || w.cwnd <= DefaultWindow || rtt <= c.minRTT*5/4 {
		return
	}
	w.shrink(max(DefaultWindow, 2*c.bdp()))
	c.wmax = float64(w.cwnd)
	c.epoch = max(now-Time(c.cubicK()*1e9), 1)
}

// bdp returns the number of packets that fill the path.
func (c *congestion) bdp() uint32 {
	return uint32(min(max(c.rate[0], c.rate[1])*float64(c.minRTT), maxMaxWindow)) + 1
}

// floorBDP returns the BDP below which random losses do not reduce the window. With selective
// repeat a short round trip counts as loadedRTT, because hosts send and receive packets in batches.
// With go-back-N a larger window costs more per loss than it gains.
func (q *QP) floorBDP() uint32 {
	c := q.cc
	if !q.attr.Selective || c.shallow > 0 || c.minRTT >= loadedRTT {
		return c.bdp()
	}
	return uint32(min(max(c.rate[0], c.rate[1])*float64(loadedRTT), DefaultWindow))
}

// limit returns the largest useful window. On short paths less than DefaultWindow is enough, and
// what is in flight should fit in the caches of both hosts; with READs more is faster. There, ACKs
// that arrive in batches make the delivery rate appear too large, so it does not count. The packets
// of the oldest outstanding message stand for all.
func (q *QP) limit() uint32 {
	c, most := q.cc, q.eng.maxWindow
	if c.minRTT == 0 || c.minRTT >= shortRTT {
		return min(most, max(DefaultWindow, 4*c.bdp()))
	}
	most = min(most, DefaultWindow)
	if w := q.sq.oldest(); w != nil && w.op != OpRead && w.length > 0 {
		size := max(shortBytes*uint64(c.minRTT)/shortRTT, shortLimit)
		most = min(most, uint32(size)/min(w.length, q.mtu.Load()))
	}
	return most
}

// sampled handles a measured round trip.
func (c *congestion) sampled(now, rtt Time, cwnd uint32) {
	if c.minRTT == 0 || rtt <= c.minRTT || now-c.minRTTAt > minRTTAge {
		c.minRTT, c.minRTTAt = rtt, now
	}
	c.rate[0] = max(c.rate[0], float64(c.total-c.started)/float64(rtt))
	if c.endedAt != 0 && now > c.endedAt {
		// A sample of a READ includes its transfer, and the average does not.
		c.rate[0] = max(c.rate[0], float64(c.total-c.ended)/float64(now-c.endedAt))
	}
	c.ended, c.endedAt = c.total, now
	switch {
	case !c.limited: // the rate is that of the user, not that of the path
		if c.epoch != 0 {
			c.epoch = min(c.epoch+rtt, now)
		}
	case c.rounds < ratePeriod-1:
		c.rounds++
	default:
		c.rounds = 0
		c.rate[1], c.rate[0] = c.rate[0], 0
	}
	c.limited = false
	marked := min(float64(c.cnps)*float64(cnpInterval)/float64(rtt), 1)
	c.alpha += (marked - c.alpha) * alphaGain
	c.cnps = 0
	c.growth = c.cubic(now, rtt, float64(cwnd))
}

// cubic returns by how much the window grows in the next round trip (RFC 9438, sections 4.2, 4.3),
// times growthUnit.
func (c *congestion) cubic(now, rtt Time, cwnd float64) uint32 {
	if c.epoch == 0 {
		return growthUnit
	}
	t := float64(now-c.epoch+rtt)/1e9 - c.cubicK()
	target := cubicC*t*t*t + c.wmax
	least := 1.0
	if cwnd >= renoWindow && cwnd < c.wmax {
		least = renoGrowth
	}
	return uint32(growthUnit * min(max(target-cwnd, least), cwnd/2+1))
}

// cubicK returns K, the seconds after which the curve is back at wmax (RFC 9438, section 4.2).
func (c *congestion) cubicK() float64 { return math.Cbrt(c.wmax * (1 - cubicBeta) / cubicC) }

// reduced records that the window is made smaller.
func (c *congestion) reduced(now Time, cwnd uint32) { c.wmax, c.epoch = float64(cwnd), now }

// lossEvent handles n packets that were found lost. The window is reduced once per window of
// packets.
func (q *QP) lossEvent(now Time, n uint64) {
	c, w := q.model(), &q.win
	queued := q.queuing()
	c.countLoss(n, queued)
	if q.una < w.recover || w.algorithm == CongestionNone {
		return
	}
	w.recover = q.max
	size := uint32(cubicBeta * float64(w.cwnd))
	if bdp := q.floorBDP(); !c.heavy && bdp >= minFloor {
		if !queued {
			bdp += bdp / headroom
		}
		size = max(size, bdp+q.unusable())
	}
	c.reduced(now, w.cwnd)
	w.shrink(max(size, q.leastWindow()))
	q.setPace()
}

// leastWindow returns the smallest window after losses.
func (q *QP) leastWindow() uint32 {
	if q.attr.Selective {
		return min(selectiveLossWindow, q.eng.maxWindow)
	}
	return min(lossWindow, q.eng.maxWindow)
}

// unusable returns how much of the window may stay unused, in packets, because the next part of a
// READ is only requested when all of it fits.
func (q *QP) unusable() uint32 {
	if w := q.sq.oldest(); w != nil && w.op == OpRead {
		return min(1<<w.part, w.npkts)
	}
	return 0
}

// queuing reports whether packets wait in a queue on the path: round trips take more than 1/16
// longer than the shortest one, and with READs also longer than it takes to transfer a part. The
// round trip of a part ends with its last response, and the window has space for one more part.
func (q *QP) queuing() bool {
	c := q.cc
	excess := q.rec.srtt - c.minRTT
	if rate := max(c.rate[0], c.rate[1]); rate > 0 {
		excess -= Time(float64(q.unusable()) / rate)
	}
	return 16*excess >= c.minRTT
}

// countLoss counts n lost packets and updates heavy and shallow.
func (c *congestion) countLoss(n uint64, queued bool) {
	c.lost += n
	if all := c.total - c.lossFrom + c.lost; all >= lossPeriod {
		least := uint64(heavyRandomLoss)
		if queued {
			least = heavyLoss
		}
		c.heavy = c.lost*least > all
		if c.lost*shallowLoss > all {
			c.shallow = shallowPeriods
		} else {
			c.shallow -= min(c.shallow, 1)
		}
		c.lossFrom, c.lost = c.total, 0
	}
}

// cnpReceived handles a congestion notification packet.
func (q *QP) cnpReceived(now Time) {
	w := &q.win
	if w.algorithm == CongestionNone {
		return
	}
	c := q.model()
	c.cnps++
	c.rcvdCNPs++
	if w.algorithm == CongestionDCQCN {
		q.reduceRate(now)
		return
	}
	if now < c.reducing {
		return
	}
	c.reducing = now + max(q.rec.srtt, cnpInterval)
	c.reduced(now, w.cwnd)
	w.shrink(max(uint32(float64(w.cwnd)*(1-c.alpha/2)), q.leastWindow()))
	q.setPace()
}
