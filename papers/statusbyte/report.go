package statusbyte

import (
	"fmt"
	"io"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Report is the outcome of a run. It implements kit.Report.
type Report struct {
	Results []kit.Result

	bench  *bench
	series []kit.Series
}

func (b *bench) report() *Report {
	s := b.allSeries()
	return &Report{Results: kit.Results(s), bench: b, series: s}
}

// Warn implements kit.Report.
func (r *Report) Warn(w io.Writer) {
	b := r.bench
	kit.WarnStarved(w, b.starved, b.Rounds*len(b.chosen)*len(transports), "the receiving thread")
	kit.WarnScatteredResults(w, r.Results)
}

// JSON implements kit.Report.
func (r *Report) JSON() any { return r.Results }

// WriteTable implements kit.Report.
func (r *Report) WriteTable(w io.Writer) error {
	b := r.bench
	where := "a veth pair between two namespaces"
	if b.Link == kit.Memory {
		where = "an in-memory link"
	}
	fmt.Fprintf(w, "%s on %s; CPUs %d and %d; %d blocks unless stated otherwise; medians of %s\n\n",
		b.datapath, where, b.CPUs[0], b.CPUs[1], blocks, cli.Count(b.Rounds, "round"))
	if err := kit.WriteTable(w, statusByte, r.Results); err != nil {
		return err
	}
	fmt.Fprint(w, remarks)
	if b.costs != nil {
		return b.writeCosts(w, b.TraceSize)
	}
	return nil
}

// remarks explain the table.
const remarks = `
sync_latency: for the status byte the READ of the whole array, which blocks the sender; for the
sliding window the time from a block's arrival until the receiver is ready for the next one, its ACK
sent and completed. latency: from the sender's call until the receiver has the block, on one clock.
throughput_256B_ack70us: the sliding window's receiver takes 70 us per block, the paper's
synchronization latency. sender_cpu: CPU of the sending side including its device, with equal loads
(256 B to 1 MiB). retained_block: throughput from 100 to 200 ms, while the third block is retained,
relative to that before. cameras12: 12 cameras with 640x480x3 B at 25 pictures a second, all at the
same time; throughput_cv is the standard deviation divided by the mean of the throughputs of the
periods, each from its begin to its last arrival; CPU and memory are those of both sides.
` + kit.AboutRatio

// note returns further text for a result.
func (b *bench) note(name string) string {
	both := func(m map[string][]float64) (status, window float64) {
		return stat.Median(m[statusByte]), stat.Median(m[slidingWindow])
	}
	s, w := b.videos[statusByte], b.videos[slidingWindow]
	switch name {
	case syncName(blocks):
		p, q := both(b.syncP99)
		return fmt.Sprintf("p99 %.1f / %.1f us; the ACK is posted after %.2f us", p, q,
			stat.Median(b.posted))
	case groupThroughput + "_" + sizeName(headlineSize):
		p, q := both(b.frames)
		return fmt.Sprintf("%.1f / %.1f packets per block", p, q)
	case groupCPU:
		p, q := both(b.sleeps)
		return fmt.Sprintf("the sending device is woken %.2f / %.2f times per block", p, q)
	case cameraNames[0]:
		return fmt.Sprintf("%.0f / %.0f MB/s, %d / %d pictures",
			kit.Mean(s.rate), kit.Mean(w.rate), s.pictures, w.pictures)
	case cameraNames[2]:
		return fmt.Sprintf("%.1f / %.1f MB of it for the connections", s.more, w.more)
	}
	return ""
}
