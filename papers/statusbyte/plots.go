package statusbyte

import (
	"slices"
	"strings"

	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// Panels implements kit.Report.
func (r *Report) Panels() (list []kit.Panel) {
	b := r.bench
	for _, c := range []*kit.Curves{
		b.overBlocks(), b.syncsOverTime(), b.overSizes("Transfer latency", "us", groupLatency),
		b.overSizes("Throughput", "MB/s", groupThroughput), b.retainedOverTime(),
		b.camerasOverTime(),
	} {
		if slices.ContainsFunc(c.Lines, func(l kit.Line) bool { return len(l.X) > 0 }) {
			list = append(list, c)
		}
	}
	for i := range r.series {
		s := &r.series[i]
		if s.Name == groupCPU || slices.Contains(cameraNames, s.Name) {
			list = append(list, &kit.Bars{Title: s.Name, X: s.Unit + ", less is better",
				Bars: []kit.Bar{
					{Label: statusByte, Values: s.Values, Own: true},
					{Label: slidingWindow, Values: s.Base},
				}})
		}
	}
	if q := b.queueBars(); len(q.Bars) > 0 {
		list = append(list, q)
	}
	return list
}

// lines returns a line for each transport. add adds its points.
func lines(add func(l *kit.Line, transport string)) []kit.Line {
	var list []kit.Line
	for _, transport := range transports {
		l := kit.Line{Name: transport}
		add(&l, transport)
		list = append(list, l)
	}
	return list
}

// medians returns lines with the medians of the results name(x).
func (b *bench) medians(xs []int, name func(x int) string) []kit.Line {
	return lines(func(l *kit.Line, transport string) {
		for _, x := range xs {
			if v := b.values[name(x)][transport]; len(v) > 0 {
				l.Add(float64(x), stat.Median(v))
			}
		}
	})
}

func (b *bench) overBlocks() *kit.Curves {
	return &kit.Curves{
		Title: "Synchronization latency", X: "blocks", Y: "us", ZeroY: true,
		Lines: b.medians(blockCounts, syncName),
	}
}

func (b *bench) overSizes(title, unit, group string) *kit.Curves {
	return &kit.Curves{
		Title: title + ", 3 blocks", X: "bytes per block", Y: unit, LogX: true, LogY: true,
		Lines: b.medians(sizes(), func(x int) string { return group + "_" + sizeName(x) }),
	}
}

func (b *bench) syncsOverTime() *kit.Curves {
	return &kit.Curves{
		Title: "Synchronization latency over time, 3 blocks", X: "number", Y: "us", LogY: true,
		Lines: lines(func(l *kit.Line, transport string) {
			l.Style = kit.Dots
			for i, us := range b.syncs[transport] {
				l.Add(float64(i), us)
			}
		}),
	}
}

func (b *bench) retainedOverTime() *kit.Curves {
	return &kit.Curves{
		Title: "A block retained from 100 to 200 ms", X: "ms", Y: "MB/s", ZeroY: true,
		Lines: lines(func(l *kit.Line, transport string) {
			rounds := b.retains[transport]
			for bin := range int(retainEnd / retainBin) {
				var v []float64
				for _, r := range rounds {
					v = append(v, r[bin])
				}
				if len(v) > 0 {
					l.Add(float64(bin)*float64(retainBin.Milliseconds()), stat.Median(v))
				}
			}
		}),
	}
}

func (b *bench) camerasOverTime() *kit.Curves {
	return &kit.Curves{
		Title: "12 cameras, one run", X: "ms", Y: "MB/s of each period", ZeroY: true,
		Lines: lines(func(l *kit.Line, transport string) {
			l.X, l.Y = b.videos[transport].at, b.videos[transport].rate
		}),
	}
}

func (b *bench) queueBars() *kit.Bars {
	p := &kit.Bars{Title: "Smallest queues that work", X: "entries"}
	for _, name := range queueNames {
		for _, transport := range transports {
			if v := b.values[name][transport]; len(v) > 0 {
				label := strings.TrimPrefix(name, groupQueues+"_") + " " + transport
				p.Bars = append(p.Bars,
					kit.Bar{Label: label, Values: v, Own: transport == statusByte})
			}
		}
	}
	return p
}
