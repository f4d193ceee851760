package statusbyte

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	kit.Options

	// TraceDir is the directory for captures of either transport; "" means none. With captures the
	// report also has the costs of a block of TraceSize bytes.
	TraceDir  string
	TraceSize int // 1 to MaxSize
}

// DefaultConfig returns the configuration of "gorxe bench statusbyte" without flags.
func DefaultConfig() Config {
	return Config{
		Options:   kit.Options{Link: kit.Veth, Rounds: 5, Duration: 150 * time.Millisecond},
		TraceSize: headlineSize,
	}
}

// bench is a run.
type bench struct {
	Config
	d      *devices
	chosen []experiment
	values map[string]map[string][]float64 // by result and transport; one per round

	starved int // unreliable measurements

	// The fields below are for plots and notes; maps are by transport.

	syncs    map[string][]float64   // synchronization latencies with 3 blocks, of the first round
	syncP99  map[string][]float64   // their 99th percentile; one per round
	posted   []float64              // sliding window: median time until the ACK is posted
	retains  map[string][][]float64 // throughput over time with a retained block
	frames   map[string][]float64   // packets per block of headlineSize; one per round
	sleeps   map[string][]float64   // sleeps of the sending device per block; one per round
	videos   map[string]video       // of the last round
	costs    map[string]*costs      // of the traced blocks; nil without a trace
	datapath string
}

// Run runs the experiments. It shows its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (r *Report, err error) {
	if err := c.Check("experiment", Names(), true); err != nil {
		return nil, err
	}
	// One thread for each side: the sliding window's sender and the goroutine that polls for its
	// ACKs alternate on one thread, which costs a fraction of a microsecond, instead of competing
	// with the receiver for its CPU.
	const threads = 2
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	b := &bench{
		Config: c, values: map[string]map[string][]float64{},
		syncs: map[string][]float64{}, syncP99: map[string][]float64{},
		retains: map[string][][]float64{}, frames: map[string][]float64{},
		sleeps: map[string][]float64{}, videos: map[string]video{},
	}
	b.chosen = choose(b.experiments(), c.Only)
	if b.d, err = openDevices(b.Link, b.CPUs, manual, nil); err != nil {
		if testbed.Unavailable(err) {
			err = fmt.Errorf("%w: run as root, or choose --link memory", err)
		}
		return nil, err
	}
	defer func() { err = errors.Join(err, b.d.Close()) }()
	b.datapath = b.d.Dev[0].Info().Datapath
	if err := b.d.warm(ctx); err != nil {
		return nil, err
	}
	if err := kit.Rounds(ctx, b.Rounds, b.steps(), stderr); err != nil {
		return nil, err
	}
	if b.TraceDir != "" {
		if err := b.trace(ctx, b.TraceDir, b.TraceSize); err != nil {
			return nil, err
		}
		if err := b.observe(ctx, b.TraceSize); err != nil {
			return nil, err
		}
	}
	return b.report(), nil
}

// steps returns the measurements of a round.
func (b *bench) steps() (list [][]kit.Step) {
	for _, e := range b.chosen {
		var both []kit.Step
		for _, transport := range transports {
			both = append(both, kit.Step{
				Experiment: e.series[0].Name, Side: transport,
				Run: func(ctx context.Context, round int) error {
					return b.measure(ctx, &e, transport, round)
				},
			})
		}
		list = append(list, both)
	}
	return list
}

// measure runs an experiment for one transport and notes the values.
func (b *bench) measure(ctx context.Context, e *experiment, transport string, round int) error {
	if e.group == groupQueues && round > 0 {
		return nil // one search is enough
	}
	v, err := b.repeat(ctx, e, transport, round)
	if err != nil {
		return err
	}
	for i := range e.series {
		name := e.series[i].Name
		if b.values[name] == nil {
			b.values[name] = map[string][]float64{}
		}
		b.values[name][transport] = append(b.values[name][transport], v[i])
	}
	return nil
}

const (
	// fairShare is the share of the time that the receiving thread must run during a measurement.
	fairShare = 0.9
	// maxTries is how often a measurement is made in which nothing arrived in time or that got too
	// little CPU time.
	maxTries = 3
)

// repeat repeats a measurement in which the receiving thread got too little CPU time, and returns
// the best one.
func (b *bench) repeat(
	ctx context.Context, e *experiment, transport string, round int,
) (best []float64, err error) {
	most := -1.0
	for range maxTries {
		b.d.share = 1
		v, err := e.measure(ctx, transport, round)
		if err != nil {
			return nil, err
		}
		if best == nil || b.d.share > most { // the share of a very short measurement may be NaN
			best, most = v, b.d.share
		}
		if most >= fairShare {
			return best, nil
		}
	}
	b.starved++
	return best, nil
}

func (b *bench) sync(ctx context.Context, transport string, n, round int) ([]float64, error) {
	us, posted, err := b.d.syncTimes(ctx, transport, n)
	if err != nil {
		return nil, err
	}
	if n == blocks {
		if round == 0 {
			b.syncs[transport] = us
		}
		b.syncP99[transport] = append(b.syncP99[transport], percentile(us, 0.99))
		if posted != nil {
			b.posted = append(b.posted, percentile(posted, 0.5))
		}
	}
	return []float64{percentile(us, 0.5)}, nil
}

// throughput repeats a measurement in which nothing arrived, with four times the time.
func (b *bench) throughput(
	ctx context.Context, transport string, size int, delay time.Duration,
) ([]float64, error) {
	rate, frames, err := b.d.throughput(ctx, transport, size, b.Duration, delay)
	for try, t := 1, b.Duration; try < maxTries && errors.Is(err, kit.ErrIdle); try++ {
		t *= 4
		rate, frames, err = b.d.throughput(ctx, transport, size, t, delay)
	}
	if size == headlineSize && delay == 0 {
		b.frames[transport] = append(b.frames[transport], frames)
	}
	return []float64{rate}, err
}

func (b *bench) retained(ctx context.Context, transport string, _ int) ([]float64, error) {
	bins, err := b.d.retained(ctx, transport)
	b.retains[transport] = append(b.retains[transport], bins)
	return []float64{remaining(bins)}, err
}

// cameras runs on its own devices, with Auto progress.
func (b *bench) cameras(ctx context.Context, transport string, _ int) ([]float64, error) {
	var v video
	err := b.onOtherDevices(auto, func(d *devices) (err error) {
		v, err = d.cameras(ctx, transport, max(time.Second, 5*b.Duration))
		return err
	})
	b.videos[transport] = v
	return []float64{kit.CV(v.rate), v.cpu, v.memory}, err
}

// senderCPU runs on its own devices. A thread drives the sending device, as a NIC would. The
// receiving thread drives its device itself, so that its CPU time can be separated from the sending
// side's.
func (b *bench) senderCPU(ctx context.Context, transport string, _ int) ([]float64, error) {
	var percent, sleeps float64
	err := b.onOtherDevices(mixed, func(d *devices) (err error) {
		percent, sleeps, err = d.senderCPU(ctx, transport, 4*b.Duration)
		return err
	})
	b.sleeps[transport] = append(b.sleeps[transport], sleeps)
	return []float64{percent}, err
}

func (b *bench) minQueues(ctx context.Context, transport string, _ int) ([]float64, error) {
	m, err := b.d.minQueues(ctx, transport)
	return []float64{float64(m.sendQP), float64(m.sendCQ), float64(m.recvQP), float64(m.recvCQ)},
		err
}

// onOtherDevices runs f on new devices and closes them: threads that drive devices would disturb
// the other measurements.
func (b *bench) onOtherDevices(progress [2]roce.Progress, f func(d *devices) error) error {
	// Devices that poll must not keep other goroutines from running: both devices, the receivers
	// and the cameras need threads.
	const threads = 8
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(threads))
	d, err := openDevices(b.Link, b.CPUs, progress, nil)
	if err != nil {
		return err
	}
	err = f(d)
	return errors.Join(err, d.Close())
}

// allSeries returns the series with values and notes.
func (b *bench) allSeries() (list []kit.Series) {
	for _, e := range b.chosen {
		for _, s := range e.series {
			s.Values, s.Base = b.values[s.Name][statusByte], b.values[s.Name][slidingWindow]
			if n := b.note(s.Name); n != "" {
				s.Note = strings.TrimPrefix(s.Note+"; "+n, "; ")
			}
			list = append(list, s)
		}
	}
	return list
}
