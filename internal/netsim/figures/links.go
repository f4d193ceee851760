package figures

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// pathMTU is the path MTU of all QPs.
const pathMTU roce.MTU = 4096

// linkRow is a link on which one QP writes or reads.
type linkRow struct {
	name         string // without prefix and suffix
	about        string
	bits         int64
	rtt          time.Duration
	loss         float64
	reorder      float64 // share of packets that are delayed by up to reorderHold
	frames       int     // limit of the link
	warmup, time time.Duration
	write, read  load
	sr, gbn      float64 // targets of WRITE, share of the link; 0 means none
}

// load is the size of operations and how many are outstanding.
type load struct{ size, depth int }

// reorderHold limits the delay of reordered packets.
const reorderHold = 50 * us

// readShare is the target of READ relative to WRITE.
const readShare = 0.9

// Outstanding operations. They must cover the bandwidth-delay product more than twice, so that the
// window and not the application limits the rate. A QP has at most 16 READs outstanding.
var (
	load64K  = load{64 * kib, 64}
	load1M   = load{mib, 64}
	load4M   = load{4 * mib, 64}
	reads64K = load{64 * kib, 16}
	reads4M  = load{4 * mib, 16}
	reads16M = load{16 * mib, 16}
)

// linkRows returns the links. Those with an RTT of 49 ms are measured after 10 s.
func linkRows() []linkRow {
	short := linkRow{bits: 25 * gbps, rtt: 100 * us, frames: 4096, warmup: 50 * ms, time: 300 * ms,
		write: load64K, read: reads64K}
	long := linkRow{bits: 10 * gbps, rtt: 49 * ms, frames: 1 << 15, warmup: 10 * time.Second,
		time: 2 * time.Second, write: load4M, read: reads16M}
	row := func(r linkRow, name, about string, sr, gbn float64) linkRow {
		r.name, r.about, r.sr, r.gbn = name, about, sr, gbn
		return r
	}
	list := []linkRow{
		row(short, "25g_100us_loss0.1", "25 Gb/s, 100 us, 0.1 % loss", 0.95, 0.75),
		row(short, "25g_100us_loss1", "25 Gb/s, 100 us, 1 % loss", 0.90, 0.35),
		row(short, "25g_10us_loss1", "25 Gb/s, 10 us, 1 % loss", 0.93, 0.80),
		row(long, "10g_10ms_loss0", "10 Gb/s, 10 ms", 0.95, 0.95),
		row(long, "10g_49ms_loss0", "10 Gb/s, 49 ms", 0.90, 0.90),
		row(long, "10g_49ms_loss0.001", "10 Gb/s, 49 ms, 0.001 % loss", 0.80, 0.40),
		row(short, "25g_100us_reorder5", "25 Gb/s, 100 us, 5 % delayed by up to 50 us", 0.95, 0),
	}
	list[0].loss, list[1].loss, list[2].loss, list[5].loss = 0.001, 0.01, 0.01, 0.00001
	list[2].rtt = 10 * us
	list[3].rtt, list[3].frames, list[3].warmup, list[3].time = 10*ms, 1<<14, time.Second,
		time.Second
	list[3].write, list[3].read = load1M, reads4M
	list[5].time = 4 * time.Second
	list[6].reorder = 0.05
	return list
}

// links returns an experiment for each link, operation, and kind of retransmission.
func links() (list []experiment) {
	rows := linkRows()
	for i := range rows {
		for _, op := range []roce.Op{roce.OpWrite, roce.OpRead} {
			for _, selective := range []bool{true, false} {
				list = append(list, rows[i].experiment(op, selective))
			}
		}
	}
	return list
}

func (r *linkRow) experiment(op roce.Op, selective bool) experiment {
	prefix, what, l := "wr_", "WRITE", r.write
	if op == roce.OpRead {
		prefix, what, l = "rd_", "READ", r.read
	}
	suffix, how, least := "_gbn", "go-back-N", r.gbn
	if selective {
		suffix, how, least = "_sr", "selective repeat", r.sr
	}
	name := prefix + r.name + suffix
	f := figure{name: name, unit: unitBW, low: least}
	if op == roce.OpRead {
		f.low, f.of = readShare, "wr_"+r.name+suffix
	}
	return experiment{
		name: name, about: fmt.Sprintf("%s: %s, %s", r.about, what, how), bits: float64(r.bits),
		scenario: netsim.Scenario{
			Senders: []netsim.Sender{{Op: op, Size: l.size, Depth: l.depth, Plan: loopback.Plan{
				Bandwidth: r.bits, Delay: r.rtt / 2, Loss: r.loss, Reorder: r.reorder,
				Hold: reorderHold,
			}}},
			Frames: r.frames, Warmup: r.warmup, Time: r.time,
			Options: []roce.Option{roce.WithSelectiveRepeat(selective)},
			Connect: roce.ConnectOptions{MTU: pathMTU},
		},
		figures: []figure{f},
	}
}
