package deterministic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/stat"
	"github.com/gorxe/gorxe/papers/kit"
)

// The paper's figures (section IV), in the units of the results.
var (
	paperRatio    = kit.Says(20.6 / 8.9) // standard RDMA, 1 MB: longest / shortest latency
	paperConstant = kit.Says(1)          // with its scheduler, at all sizes
	paperOrder    = kit.Says(1)
	paperDisorder = kit.Says(0.3)
	paperOverhead = kit.Says(670)    // us
	paperLatency  = kit.Says(37)     // ms
	paperYOLO     = kit.Says(150.67) // ms, with its scheduler
	paperYOLOBase = kit.Says(150)    // ms, standard RDMA
)

// Sizes of the overhead's messages: 64 KiB to 32 MiB.
const (
	minOverhead = 64 << 10
	maxOverhead = 32 << 20
)

func experiments() []experiment {
	var list []experiment
	for mb := 1; mb <= 32; mb *= 2 {
		list = append(list, experiment{name: fmt.Sprintf("hp_latency_%dMB", mb), once: mb > 1,
			run: func(ctx context.Context, b *bench, x string, seed uint64) error {
				return b.hpLatency(ctx, x, mb, seed)
			}})
	}
	list = append(list,
		experiment{name: "latency_4MB", once: true, run: runLatency},
		experiment{name: "order_3x4", run: runOrder},
		experiment{name: "yolo_end_to_end", once: true, run: runYOLO},
		experiment{name: "sweep_P", once: true, run: runSweep},
		experiment{name: "rates_30_100Hz", once: true, run: runRates},
		experiment{name: "overload", once: true, run: runOverload},
		experiment{name: "loss", once: true, run: runLoss})
	for size := minOverhead; size <= maxOverhead; size *= 2 {
		list = append(list, experiment{name: "overhead_" + sizeName(size),
			run: func(ctx context.Context, b *bench, x string, _ uint64) error {
				return b.overhead(ctx, x, size)
			}})
	}
	return append(list, experiment{name: "class7", run: runClass7})
}

// sizeName returns a size as the paper writes it: 64KB, 1MB.
func sizeName(size int) string {
	if size < 1<<20 {
		return fmt.Sprintf("%dKB", size>>10)
	}
	return fmt.Sprintf("%dMB", size>>20)
}

// Names returns the names of the experiments.
func Names() []string {
	var s []string
	for _, x := range experiments() {
		s = append(s, x.name)
	}
	return s
}

// of calls f for the method classes and for others, and returns the results in that order.
func of[T any](others []method, f func(m method) (T, error)) ([]T, error) {
	all := append([]method{classes}, others...)
	results := make([]T, len(all))
	return results, parallel(all, func(i int, m method) (err error) {
		results[i], err = f(m)
		return err
	})
}

// compare adds a figure for each of others. values are those of classes and of the others.
// paperBase of f is about standard RDMA, which has no classes.
func (b *bench) compare(others []method, f figure, values []float64, notes ...string) {
	paperBase := f.paperBase
	for i, m := range others {
		if f.baseline, f.paperBase = m.name, nil; m.name == noClasses.name {
			f.paperBase = paperBase
		}
		if len(notes) > 0 {
			f.note = notes[0] + "; " + m.name + " " + notes[i+1]
		}
		b.add(f, values[0], values[i+1])
	}
}

// scaled returns numbers in another unit.
func scaled[T any](list []T, factor float64, of func(T) float64) []float64 {
	v := make([]float64, len(list))
	for i, x := range list {
		v[i] = of(x) * factor
	}
	return v
}

// Runs of hp_latency: as many as in the paper. Of those with more than 1 MB, only the ones that
// are slowest on an ideal shared link are simulated, and one in which no messages meet.
const (
	hpRuns    = 100
	hpSlowest = 6
)

// hpLatency is the paper's experiment "communication latency". The result is the longest latency of
// the highest of three priorities divided by the shortest one. For classes it includes phases in
// which all messages meet.
func (b *bench) hpLatency(ctx context.Context, x string, mb int, seed uint64) error {
	size := mb << 20
	r := rand.New(rand.NewPCG(seed, uint64(size)))
	var runs []phases
	for range hpRuns {
		runs = append(runs, randomPhases(r, size))
	}
	if mb > 1 {
		runs = append(slowest(runs, size, hpSlowest), apart)
	}
	meet := adversarial(size)
	type result struct{ random, meet []time.Duration }
	others := baselines
	if mb == 1 {
		others = append(slices.Clone(others), noLimit)
	}
	list, err := of(others, func(m method) (l result, err error) {
		if l.random, err = latencies(ctx, m, seed, size, runs); err != nil {
			return l, err
		}
		if m == classes {
			l.meet, err = latencies(ctx, m, seed, size, meet)
			return l, err
		}
		l.meet, err = latencies(ctx, m, seed, size, meet[:1])
		return l, err
	})
	if err != nil {
		return err
	}
	var notes []string
	ratios := scaled(list, 1, func(l result) float64 {
		least, most := slices.Min(l.random), slices.Max(l.random)
		worst := slices.Max(l.meet)
		notes = append(notes, fmt.Sprintf("%.2f to %.2f ms, %.2f if all meet", msOf(least),
			msOf(most), float64(worst)/float64(least)))
		return float64(most) / float64(least)
	})
	first := slices.Concat(list[0].random, list[0].meet)
	ratios[0] = float64(slices.Max(first)) / float64(slices.Min(first))
	f := figure{name: x, unit: "max/min", paper: paperConstant}
	if mb == 1 {
		f.paperBase = paperRatio
	}
	b.compare(others, f, ratios, notes...)
	return nil
}

func msOf(d time.Duration) float64 { return d.Seconds() * 1e3 }
func usOf(d time.Duration) float64 { return d.Seconds() * 1e6 }

// runLatency sends one message of 4 MiB.
func runLatency(ctx context.Context, b *bench, x string, seed uint64) error {
	list, err := of(baselines, func(m method) (time.Duration, error) {
		return alone(ctx, m, seed, 4<<20)
	})
	b.compare(baselines, figure{name: x, unit: "ms", paper: paperLatency,
		paperBase: paperLatency}, scaled(list, 1, msOf))
	return err
}

func runOrder(ctx context.Context, b *bench, x string, seed uint64) error {
	list, err := of(baselines, func(m method) (float64, error) { return packetOrder(ctx, m, seed) })
	b.compare(baselines, figure{name: x, unit: "in order", paper: paperOrder,
		paperBase: paperDisorder}, list)
	return err
}

func runYOLO(ctx context.Context, b *bench, x string, seed uint64) error {
	for _, loaded := range []bool{false, true} {
		list, err := of(baselines, func(m method) (float64, error) { return yolo(ctx, m, seed, loaded) })
		if err != nil {
			return err
		}
		f := figure{name: x, unit: "ms", paper: paperYOLO, paperBase: paperYOLOBase}
		if loaded {
			f.name, f.paper, f.paperBase = x+"_beside_bulk", nil, nil
		}
		b.compare(baselines, f, scaled(list, 1e3, func(s float64) float64 { return s }))
	}
	return nil
}

// runSweep compares the engine's preemption points with those of the layer.
func runSweep(ctx context.Context, b *bench, x string, seed uint64) error {
	for _, p := range sweepPoints {
		type result struct{ latency, goodput float64 }
		methods := []method{{classes: true, part: p}, {layer: true, part: p}}
		results := make([]result, len(methods))
		err := parallel(methods, func(i int, m method) (err error) {
			r := &results[i]
			r.latency, r.goodput, err = interference(ctx, m, seed)
			return err
		})
		if err != nil {
			return err
		}
		name := x + "_" + strings.ReplaceAll(cli.FormatSize(int64(p)), " ", "")
		f := figure{name: name + "_latency", unit: "ms", baseline: wholeLayer.name,
			note: "longest latency of the high class"}
		b.add(f, results[0].latency*1e3, results[1].latency*1e3)
		f.name, f.unit, f.note = name+"_goodput", "Mb/s", "of the low class"
		b.add(f, results[0].goodput, results[1].goodput)
	}
	return nil
}

func runRates(ctx context.Context, b *bench, x string, seed uint64) error {
	list, err := of(baselines, func(m method) ([2]time.Duration, error) { return multiRate(ctx, m, seed) })
	for i, hz := range ratesHz {
		b.compare(baselines, figure{name: fmt.Sprintf("%s_at_%dHz", x, hz), unit: "ms",
			note: "jitter of arrivals"},
			scaled(list, 1, func(j [2]time.Duration) float64 { return msOf(j[i]) }))
	}
	return err
}

func runOverload(ctx context.Context, b *bench, x string, seed uint64) error {
	list, err := of(baselines, func(m method) (overloaded, error) { return overload(ctx, m, seed) })
	b.compare(baselines, figure{name: x, unit: "in time",
		note: fmt.Sprintf("share of the high class within %v", overloadDeadline)},
		scaled(list, 1, func(o overloaded) float64 { return o.inTime[high] }))
	b.compare(baselines, figure{name: x + "_latency", unit: "ms",
		note: "longest latency of the high class"},
		scaled(list, 1, func(o overloaded) float64 { return msOf(o.late) }))
	return err
}

// runLoss adds what one lost packet costs the message that it belongs to. The notes say what it
// costs the other messages.
func runLoss(ctx context.Context, b *bench, x string, seed uint64) error {
	var list [2][][3]lossCost
	for i, m := range []method{classes, noClasses} {
		var err error
		if list[i], err = losses(ctx, m, seed); err != nil {
			return err
		}
	}
	names := [3]string{low: "low", medium: "medium", high: "high"}
	for i, name := range names {
		for k, at := range lossAt {
			note := "delay of the message with the loss"
			for j, other := range names {
				if j != i {
					note += fmt.Sprintf("; %s %+.0f us", other, usOf(list[0][k][i][j]))
				}
			}
			b.add(figure{name: x + "_" + name + "_" + at.name, unit: "us", baseline: noClasses.name,
				note: note}, usOf(list[0][k][i][i]), usOf(list[1][k][i][i]))
		}
	}
	return nil
}

// Messages of a measurement of the overhead: as many as fit into overheadBytes.
const (
	overheadBytes = 256 << 20
	overheadMin   = 16
	overheadMax   = 400
)

// overhead is the time that the scheduler adds to a message. The baseline is the latency without
// the scheduler, so the ratio is the relative overhead.
func (b *bench) overhead(ctx context.Context, x string, size int) error {
	count := min(max(overheadBytes/size, overheadMin), overheadMax)
	with, without, err := b.overheads(ctx, size, count)
	if err != nil {
		return err
	}
	added := stat.Median(with.host) - stat.Median(without.host)
	b.add(figure{name: x, unit: "us", baseline: "latency", paper: paperOverhead,
		note: fmt.Sprintf("latency %.0f us with the scheduler", stat.Median(with.total)*1e6)},
		added*1e6, stat.Median(without.total)*1e6)
	return nil
}

// settings are the links of class7: one whose queue is below the device, and one that is limited by
// the processors, so that the queue is in the receiver.
var settings = []struct {
	name string
	setting
}{
	{"100Mbps", setting{rate: 100e6}},
	{"unlimited", setting{told: 1e9}},
}

// runClass7 measures small messages of class 7 beside bulk traffic of class 0.
func runClass7(ctx context.Context, b *bench, x string, _ uint64) error {
	for _, s := range settings {
		var sorted [2][]float64
		var bulk [2]float64
		for i, class := range []int{7, 0} {
			times, mbps, err := b.urgent(ctx, class, s.setting)
			if err != nil {
				return err
			}
			slices.Sort(times)
			sorted[i], bulk[i] = times, mbps
		}
		for _, p := range []struct {
			name  string
			share float64
		}{{"p50", 0.5}, {"p99.9", 0.999}, {"max", 1}} {
			b.add(figure{name: x + "_" + s.name + "_" + p.name, unit: "us", baseline: noClasses.name,
				note: fmt.Sprintf("%d messages against %d; bulk %.0f Mb/s against %.0f",
					len(sorted[0]), len(sorted[1]), bulk[0], bulk[1])},
				percentile(sorted[0], p.share)*1e6, percentile(sorted[1], p.share)*1e6)
		}
	}
	return nil
}
