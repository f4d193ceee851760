package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/gorxe/gorxe/papers/kit/paper"
	"github.com/gorxe/gorxe/roce"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	// blocks is how many blocks each end has, as in the paper, unless an experiment varies it.
	blocks = 3
	// Blocks grow to largestPower by doubling; the paper has one more, largest.
	largestPower = 8 * mib
	largest      = 22 * mib
	// headlineSize is where the paper's ratio of throughputs is stated. slowName is the same with a rival whose ACKs take as
	// long as in the paper.
	headlineSize = 256
	slowName     = groupThroughput + "_256B_ack70us"
	paperACK     = 70 * time.Microsecond
)

// blockCounts are the numbers of blocks of the synchronisation experiment.
var blockCounts = []int{3, 4, 8, 16, 32, 64}

// sizes are 64 B to 8 MiB, and 22 MiB.
func sizes() (list []int) {
	for n := 64; n <= largestPower; n *= 2 {
		list = append(list, n)
	}
	return append(list, largest)
}

// sizeName is a size in a result's name: 64B, 4KiB, 22MiB.
func sizeName(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%dMiB", n/mib)
	case n >= kib:
		return fmt.Sprintf("%dKiB", n/kib)
	}
	return fmt.Sprintf("%dB", n)
}

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

// The results that one run of the cameras, or of the search for queues, gives.
var (
	cameraNames = []string{"cameras12_throughput_cv", "cameras12_cpu", "cameras12_memory"}
	queueNames  = []string{"min_queues_sender_qp", "min_queues_sender_cq", "min_queues_receiver_qp", "min_queues_receiver_cq"}
)

// experiment is measured at once for one lane, and gives a value for each of its results.
type experiment struct {
	group string
	rows  []paper.Row // without values: names, units, what the paper says
	run   func(ctx context.Context, b *bench, lane string, round int) ([]float64, error)
}

func row(name, unit string) paper.Row {
	return paper.Row{Name: name, Unit: unit, Baseline: laneWindow}
}

// experiments are all that can be measured.
func experiments() (list []experiment) {
	for _, n := range blockCounts {
		r := row(fmt.Sprintf("%s_%dblocks", groupSync, n), "us")
		if n == blocks {
			r.PaperValue, r.PaperBase, r.Paper = paper.Says(5.1), paper.Says(70), paper.Says(0.0729)
		}
		list = append(list, experiment{groupSync, []paper.Row{r}, func(ctx context.Context, b *bench, lane string, round int) ([]float64, error) {
			return b.sync(ctx, lane, n, round)
		}})
	}
	for _, n := range sizes() {
		list = append(list, experiment{groupLatency, []paper.Row{row(groupLatency+"_"+sizeName(n), "us")}, func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			return one(b.w.latency(ctx, lane, blocks, n, b.duration))
		}})
	}
	for _, n := range sizes() {
		r := row(groupThroughput+"_"+sizeName(n), "MB/s")
		if n == headlineSize {
			r.Paper = paper.Says(4.6)
		}
		list = append(list, experiment{groupThroughput, []paper.Row{r}, func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			return b.throughput(ctx, lane, n, 0)
		}})
	}
	slow := row(slowName, "MB/s")
	slow.Baseline, slow.Paper = laneWindow+", ACKs after 70 us", paper.Says(4.6)
	list = append(list, experiment{groupThroughput, []paper.Row{slow}, func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
		if lane == laneStatus {
			return b.throughput(ctx, lane, headlineSize, 0)
		}
		return b.throughput(ctx, lane, headlineSize, paperACK)
	}})
	cpu := row(groupCPU, "%")
	cpu.Paper = paper.Says(0.8)
	kept := row(groupRetained, "% of before")
	kept.PaperValue, kept.PaperBase = paper.Says(88), paper.Says(0)
	return append(list,
		experiment{groupCPU, []paper.Row{cpu}, func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			return b.senderCPU(ctx, lane)
		}},
		experiment{groupRetained, []paper.Row{kept}, func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			return b.retained(ctx, lane)
		}},
		experiment{groupCameras, cameraRows(), func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			return b.cameras(ctx, lane)
		}},
		experiment{groupQueues, queueRows(), func(ctx context.Context, b *bench, lane string, _ int) ([]float64, error) {
			l, err := b.w.leastQueues(ctx, lane, blocks)
			return []float64{float64(l.sendQP), float64(l.sendCQ), float64(l.recvQP), float64(l.recvCQ)}, err
		}},
	)
}

func one(f float64, err error) ([]float64, error) { return []float64{f}, err }

func cameraRows() []paper.Row {
	rows := []paper.Row{row(cameraNames[0], "sd/mean"), row(cameraNames[1], "%"), row(cameraNames[2], "MB")}
	rows[1].Paper = paper.Says(0.631) // 106 % against 168 %
	rows[1].PaperValue, rows[1].PaperBase = paper.Says(106), paper.Says(168)
	rows[2].Paper = paper.Says(0.542) // 1.3 % against 2.4 % of the machine's memory
	return rows
}

func queueRows() []paper.Row {
	var rows []paper.Row
	for _, name := range queueNames {
		rows = append(rows, row(name, "entries"))
	}
	// Of the paper's sender: a send queue of 2 and a CQ of 1; of its receiver: no queue, and a CQ of 1 that has to be there.
	rows[0].Note, rows[1].Note = "paper: 2 for the status byte", "paper: 1 for the status byte"
	rows[2].Note, rows[3].Note = "paper: 0 for the status byte, 3 receives for the rival", "paper: 1 for the status byte, 3 for the rival"
	return rows
}

// bench is a run.
type bench struct {
	link     string
	cpus     []int
	duration time.Duration
	w        *world
	chosen   []experiment
	values   map[string]map[string][]float64 // by result and lane; one a round

	starved int // measurements that are not worth much

	// For plots and notes.
	series  map[string][]float64   // by lane: synchronisation latencies with 3 blocks, of the first round
	tails   map[string][]float64   // by lane: their p99, one a round
	posted  []float64              // of the sliding window: until the ACK is posted, one median a round
	stalled map[string][][]float64 // by lane: retained, one a round
	frames  map[string][]float64   // by lane: frames on the wire, both directions, for a block of headlineSize; one a round
	naps    map[string][]float64   // by lane: how often the sending NIC slept for a block under sender_cpu's loads; one a round
	films   map[string]video       // by lane: the last one
	costs   map[string]*costs      // by lane: of the blocks that were traced; nil: none were
}

// choose keeps the experiments whose group or a result's name was asked for.
func choose(list []experiment, only []string) []experiment {
	if len(only) == 0 {
		return list
	}
	return slices.DeleteFunc(list, func(e experiment) bool {
		return !slices.ContainsFunc(e.rows, func(r paper.Row) bool { return slices.Contains(only, r.Name) }) && !slices.Contains(only, e.group)
	})
}

func names(list []experiment) (all []string) {
	for _, e := range list {
		if !slices.Contains(all, e.group) {
			all = append(all, e.group)
		}
		for _, r := range e.rows {
			if !slices.Contains(all, r.Name) {
				all = append(all, r.Name)
			}
		}
	}
	return all
}

// steps are the measurements of a round.
func (b *bench) steps() (list [][]paper.Step) {
	for _, e := range b.chosen {
		var both []paper.Step
		for _, lane := range laneNames {
			both = append(both, paper.Step{Experiment: e.rows[0].Name, Side: lane, Run: func(ctx context.Context, round int) error {
				return b.measure(ctx, &e, lane, round)
			}})
		}
		list = append(list, both)
	}
	return list
}

// measure notes one lane's values.
func (b *bench) measure(ctx context.Context, e *experiment, lane string, round int) error {
	if e.group == groupQueues && round > 0 {
		return nil // found once
	}
	v, err := b.insist(ctx, e, lane, round)
	if err != nil {
		return err
	}
	for i := range e.rows {
		name := e.rows[i].Name
		if b.values[name] == nil {
			b.values[name] = map[string][]float64{}
		}
		b.values[name][lane] = append(b.values[name][lane], v[i])
	}
	return nil
}

// fairShare is how much of the time the receiving thread has to run for a measurement to count.
const fairShare = 0.9

// insist repeats a measurement in which the receiving thread got too little CPU time, and in the end takes the best.
func (b *bench) insist(ctx context.Context, e *experiment, lane string, round int) (best []float64, err error) {
	most := -1.0
	for range tries {
		b.w.share = 1
		v, err := e.run(ctx, b, lane, round)
		if err != nil {
			return nil, err
		}
		if best == nil || b.w.share > most { // the share of a very short measurement may be no number
			best, most = v, b.w.share
		}
		if most >= fairShare {
			return best, nil
		}
	}
	b.starved++
	return best, nil
}

func (b *bench) sync(ctx context.Context, lane string, n, round int) ([]float64, error) {
	us, posted, err := b.w.syncTimes(ctx, lane, n)
	if err != nil {
		return nil, err
	}
	if n == blocks {
		if round == 0 {
			b.series[lane] = us
		}
		b.tails[lane] = append(b.tails[lane], percentile(us, 0.99))
		if posted != nil {
			b.posted = append(b.posted, percentile(posted, 0.5))
		}
	}
	return []float64{percentile(us, 0.5)}, nil
}

func (b *bench) throughput(ctx context.Context, lane string, n int, ack time.Duration) ([]float64, error) {
	rate, frames, err := b.w.throughput(ctx, lane, shape{blocks: blocks, size: n}, b.duration, ack)
	// A machine that is busy with other things gets more time.
	for try, d := 1, b.duration; try < tries && errors.Is(err, errNothing); try++ {
		d *= 4
		rate, frames, err = b.w.throughput(ctx, lane, shape{blocks: blocks, size: n}, d, ack)
	}
	if n == headlineSize && ack == 0 {
		b.frames[lane] = append(b.frames[lane], frames)
	}
	return []float64{rate}, err
}

func (b *bench) retained(ctx context.Context, lane string) ([]float64, error) {
	bins, err := b.w.retained(ctx, lane, blocks)
	b.stalled[lane] = append(b.stalled[lane], bins)
	return []float64{kept(bins)}, err
}

// cameras runs on devices of its own, with Auto progress.
func (b *bench) cameras(ctx context.Context, lane string) ([]float64, error) {
	var v video
	err := b.elsewhere(auto, func(w *world) (err error) {
		v, err = w.cameras(ctx, lane, blocks, max(time.Second, 5*b.duration))
		return err
	})
	b.films[lane] = v
	return []float64{paper.CV(v.rate), v.cpu, v.memory}, err
}

// tries is how often a measurement is made in which nothing arrived in time, or that got too little CPU time.
const tries = 3

// manyThreads is room for both NICs, the receivers, and cameras that send.
const manyThreads = 8

// elsewhere runs f on devices of its own, which are gone afterwards: threads that drive devices change how others wait.
func (b *bench) elsewhere(progress [2]roce.Progress, f func(w *world) error) error {
	// Each thread is the kernel's to schedule: NICs that spin must not keep Go's other threads waiting.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(manyThreads))
	w, err := newWorld(b.link, b.cpus, progress)
	if err != nil {
		return err
	}
	err = f(w)
	return errors.Join(err, w.close())
}

// senderCPU runs with a sending device that has a thread of its own, as a NIC has; the receiving thread drives its device, so
// that its CPU time can be told from the sending side's.
func (b *bench) senderCPU(ctx context.Context, lane string) ([]float64, error) {
	var percent, naps float64
	err := b.elsewhere(mixed, func(w *world) (err error) {
		percent, naps, err = w.senderCPU(ctx, lane, blocks, 4*b.duration)
		return err
	})
	b.naps[lane] = append(b.naps[lane], naps)
	return []float64{percent}, err
}

// rows are the results.
func (b *bench) rows() (list []paper.Row) {
	for _, e := range b.chosen {
		for _, r := range e.rows {
			r.Values, r.Base = b.values[r.Name][laneStatus], b.values[r.Name][laneWindow]
			if n := b.note(r.Name); n != "" {
				r.Note = strings.TrimPrefix(r.Note+"; "+n, "; ")
			}
			list = append(list, r)
		}
	}
	return list
}
