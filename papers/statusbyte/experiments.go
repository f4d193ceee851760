package statusbyte

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	// blocks is the number of blocks of each side, as in the paper, unless an experiment varies it.
	blocks = 3
	// The sizes of blocks double up to largestPower. The paper has one more: MaxSize.
	largestPower = 8 * mib
	// MaxSize is the largest size of a block in bytes.
	MaxSize = 22 * mib
	// headlineSize is the size for which the paper states the ratio of the throughputs.
	headlineSize = 256
	// slowName is the same experiment with a sliding window whose ACKs take as long as in the
	// paper.
	slowName = groupThroughput + "_256B_ack70us"
	paperACK = 70 * time.Microsecond
)

// blockCounts are the numbers of blocks of the synchronization experiment.
var blockCounts = []int{3, 4, 8, 16, 32, 64}

// sizes returns 64 B to largestPower, and MaxSize.
func sizes() (list []int) {
	for n := 64; n <= largestPower; n *= 2 {
		list = append(list, n)
	}
	return append(list, MaxSize)
}

// sizeName returns a size as in the names of results: 64B, 4KiB, 22MiB.
func sizeName(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%dMiB", n/mib)
	case n >= kib:
		return fmt.Sprintf("%dKiB", n/kib)
	}
	return fmt.Sprintf("%dB", n)
}

func syncName(n int) string { return fmt.Sprintf("%s_%dblocks", groupSync, n) }

// The groups of experiments.
const (
	groupSync       = "sync_latency"
	groupLatency    = "latency"
	groupThroughput = "throughput"
	groupCPU        = "sender_cpu"
	groupRetained   = "retained_block"
	groupCameras    = "cameras12"
	groupQueues     = "min_queues"
)

// Groups returns the groups of experiments.
func Groups() []string {
	return []string{
		groupSync, groupLatency, groupThroughput, groupCPU, groupRetained, groupCameras,
		groupQueues,
	}
}

// The names of the results that one run of the cameras, or one search for queues, gives.
var (
	cameraNames = []string{"cameras12_throughput_cv", "cameras12_cpu", "cameras12_memory"}
	queueNames  = []string{
		"min_queues_sender_qp", "min_queues_sender_cq", "min_queues_receiver_qp",
		"min_queues_receiver_cq",
	}
)

// experiment measures one or more results of a transport.
type experiment struct {
	group   string
	series  []kit.Series // without values
	measure measure
}

// measure returns one value for each series.
type measure func(ctx context.Context, transport string, round int) ([]float64, error)

func series(name, unit string) kit.Series {
	return kit.Series{Name: name, Unit: unit, Baseline: slidingWindow}
}

// experiments returns all experiments. They measure with b, which may be nil if they are not run.
func (b *bench) experiments() (list []experiment) {
	add := func(group string, m measure, s ...kit.Series) {
		list = append(list, experiment{group, s, m})
	}
	for _, n := range blockCounts {
		s := series(syncName(n), "us")
		if n == blocks {
			s.PaperValue, s.PaperBase, s.Paper = kit.Says(5.1), kit.Says(70), kit.Says(0.0729)
		}
		add(groupSync, func(ctx context.Context, transport string, round int) ([]float64, error) {
			return b.sync(ctx, transport, n, round)
		}, s)
	}
	for _, n := range sizes() {
		add(groupLatency, func(ctx context.Context, transport string, _ int) ([]float64, error) {
			us, err := b.d.latency(ctx, transport, n, b.Duration)
			return []float64{us}, err
		}, series(groupLatency+"_"+sizeName(n), "us"))
	}
	throughput := func(n int, windowDelay time.Duration) measure {
		return func(ctx context.Context, transport string, _ int) ([]float64, error) {
			if transport == statusByte {
				return b.throughput(ctx, transport, n, 0)
			}
			return b.throughput(ctx, transport, n, windowDelay)
		}
	}
	for _, n := range sizes() {
		s := series(groupThroughput+"_"+sizeName(n), "MB/s")
		if n == headlineSize {
			s.Paper = kit.Says(4.6)
		}
		add(groupThroughput, throughput(n, 0), s)
	}
	slow := series(slowName, "MB/s")
	slow.Baseline, slow.Paper = slidingWindow+", ACKs after 70 us", kit.Says(4.6)
	add(groupThroughput, throughput(headlineSize, paperACK), slow)

	cpu := series(groupCPU, "%")
	cpu.Paper = kit.Says(0.8)
	add(groupCPU, b.senderCPU, cpu)
	kept := series(groupRetained, "% of before")
	kept.PaperValue, kept.PaperBase = kit.Says(88), kit.Says(0)
	add(groupRetained, b.retained, kept)
	add(groupCameras, b.cameras, cameraSeries()...)
	add(groupQueues, b.minQueues, queueSeries()...)
	return list
}

func cameraSeries() []kit.Series {
	cpu, memory := series(cameraNames[1], "%"), series(cameraNames[2], "MB")
	cpu.PaperValue, cpu.PaperBase, cpu.Paper = kit.Says(106), kit.Says(168), kit.Says(0.631)
	memory.Paper = kit.Says(0.542) // 1.3 % against 2.4 % of the machine's memory
	return []kit.Series{series(cameraNames[0], "sd/mean"), cpu, memory}
}

func queueSeries() []kit.Series {
	var list []kit.Series
	for i, name := range queueNames {
		s := series(name, "entries")
		s.Note = []string{
			"paper: 2 for the status byte",
			"paper: 1 for the status byte",
			"paper: 0 for the status byte, 3 receives for the sliding window",
			"paper: 1 for the status byte, 3 for the sliding window",
		}[i]
		list = append(list, s)
	}
	return list
}

// choose returns the experiments of which the group or the name of a result is in only, all
// experiments if only is empty.
func choose(list []experiment, only []string) []experiment {
	if len(only) == 0 {
		return list
	}
	chosen := func(name string) bool { return slices.Contains(only, name) }
	return slices.DeleteFunc(list, func(e experiment) bool {
		return !chosen(e.group) &&
			!slices.ContainsFunc(e.series, func(s kit.Series) bool { return chosen(s.Name) })
	})
}

// Names returns the names of groups and results.
func Names() (all []string) {
	add := func(name string) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	for _, e := range (*bench)(nil).experiments() {
		add(e.group)
		for _, s := range e.series {
			add(s.Name)
		}
	}
	return all
}
