package statusbyte

import (
	"fmt"
	"slices"

	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
)

// remarks explain the table.
const remarks = `
Synchronisation: status byte, the READ of the whole array, which blocks the sender; sliding window, from a block's hand-over until the
receiver is ready for the next, its ACK sent and completed. Latency: from the sender's call to the receiver's hand-over, on one
clock. throughput_256B_ack70us: the rival's receiver takes 70 us a block, the paper's synchronisation latency. sender_cpu: CPU of the
sending side, its NIC included, under equal loads (256 B to 1 MiB). retained_block: throughput from 100 to 200 ms, while the third
block is kept, against that before. Cameras: 12 of 640x480x3 B at 25 frames a second, all at the same time; standard deviation by mean
of the throughput of such turns, each from its beginning to its last hand-over; CPU and memory of both ends.
` + kit.AboutRatio

// note is what else is known of a result.
func (b *bench) note(name string) string {
	switch name {
	case fmt.Sprintf("%s_%dblocks", groupSync, blocks):
		return fmt.Sprintf("p99 %.1f / %.1f us; the ACK is posted after %.2f us",
			stat.Median(b.tails[laneStatus]), stat.Median(b.tails[laneWindow]), stat.Median(b.posted))
	case groupThroughput + "_" + sizeName(headlineSize):
		return fmt.Sprintf("%.1f / %.1f frames on the wire a block", stat.Median(b.frames[laneStatus]), stat.Median(b.frames[laneWindow]))
	case groupCPU:
		return fmt.Sprintf("the sending NIC is woken %.2f / %.2f times a block", stat.Median(b.naps[laneStatus]), stat.Median(b.naps[laneWindow]))
	case cameraNames[0]:
		return fmt.Sprintf("%.0f / %.0f MB/s, %d / %d frames", paper.Mean(b.films[laneStatus].rate), paper.Mean(b.films[laneWindow].rate),
			b.films[laneStatus].frames, b.films[laneWindow].frames)
	case cameraNames[2]:
		return fmt.Sprintf("of it for the connections %.1f / %.1f MB", b.films[laneStatus].more, b.films[laneWindow].more)
	}
	return ""
}

// panels are the plots.
func (b *bench) panels() (list []paper.Panel) {
	add := func(c *paper.Curves) {
		if slices.ContainsFunc(c.Lines, func(l paper.Line) bool { return len(l.X) > 0 }) {
			list = append(list, c)
		}
	}
	add(b.overBlocks())
	add(b.distribution())
	add(b.overSizes("Transfer latency", "us", groupLatency))
	add(b.overSizes("Throughput", "MB/s", groupThroughput))
	add(b.retainedOverTime())
	add(b.camerasOverTime())
	for _, r := range b.rows() {
		if slices.Contains(append([]string{groupCPU}, cameraNames...), r.Name) {
			list = append(list, &paper.Bars{Title: r.Name, X: r.Unit + ", less is better", Bars: []paper.Bar{
				{Label: laneStatus, Values: r.Values, Own: true}, {Label: laneWindow, Values: r.Base},
			}})
		}
	}
	if q := b.queueBars(); len(q.Bars) > 0 {
		list = append(list, q)
	}
	return list
}

// curve is the medians of results over something.
func (b *bench) curve(lane string, xs []int, name func(x int) string) (l paper.Line) {
	l.Name = lane
	for _, x := range xs {
		if v := b.values[name(x)][lane]; len(v) > 0 {
			l.X, l.Y = append(l.X, float64(x)), append(l.Y, stat.Median(v))
		}
	}
	return l
}

func (b *bench) overBlocks() *paper.Curves {
	c := &paper.Curves{Title: "Synchronisation latency", X: "blocks", Y: "us", ZeroY: true}
	for _, lane := range laneNames {
		c.Lines = append(c.Lines, b.curve(lane, blockCounts, func(x int) string { return fmt.Sprintf("%s_%dblocks", groupSync, x) }))
	}
	return c
}

func (b *bench) overSizes(title, unit, group string) *paper.Curves {
	c := &paper.Curves{Title: title + ", 3 blocks", X: "bytes a block", Y: unit, LogX: true, LogY: true}
	for _, lane := range laneNames {
		c.Lines = append(c.Lines, b.curve(lane, sizes(), func(x int) string { return group + "_" + sizeName(x) }))
	}
	return c
}

func (b *bench) distribution() *paper.Curves {
	c := &paper.Curves{Title: "Synchronisation latency over time, 3 blocks", X: "number", Y: "us", LogY: true}
	for _, lane := range laneNames {
		l := paper.Line{Name: lane, Y: b.series[lane], Dots: true}
		for i := range l.Y {
			l.X = append(l.X, float64(i))
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

func (b *bench) retainedOverTime() *paper.Curves {
	c := &paper.Curves{Title: "A block retained from 100 to 200 ms", X: "ms", Y: "MB/s", ZeroY: true}
	for _, lane := range laneNames {
		l := paper.Line{Name: lane}
		rounds := b.stalled[lane]
		for bin := range int(retainEnd / retainBin) {
			var v []float64
			for _, r := range rounds {
				v = append(v, r[bin])
			}
			if len(v) > 0 {
				l.X, l.Y = append(l.X, float64(bin)*float64(retainBin.Milliseconds())), append(l.Y, stat.Median(v))
			}
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

func (b *bench) camerasOverTime() *paper.Curves {
	c := &paper.Curves{Title: "12 cameras, one run", X: "ms", Y: "MB/s of each turn", ZeroY: true}
	for _, lane := range laneNames {
		c.Lines = append(c.Lines, paper.Line{Name: lane, X: b.films[lane].at, Y: b.films[lane].rate})
	}
	return c
}

func (b *bench) queueBars() *paper.Bars {
	p := &paper.Bars{Title: "Least queues that work", X: "entries"}
	for _, name := range queueNames {
		for _, lane := range laneNames {
			if v := b.values[name][lane]; len(v) > 0 {
				p.Bars = append(p.Bars, paper.Bar{Label: name[len("min_queues_"):] + " " + lane, Values: v, Own: lane == laneStatus})
			}
		}
	}
	return p
}
