package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// Config configures a run. Use DefaultConfig and change what differs.
type Config struct {
	Rounds int
	Only   []string // figures; empty: all
	Plot   string   // file to draw the results into; "": none
}

// DefaultConfig returns the configuration of "gorxe bench run" without flags.
func DefaultConfig() Config { return Config{Rounds: 5} }

// measurement measures one side of a figure once.
type measurement func(ctx context.Context, b *bench) (float64, error)

// figure is one row of the report.
type figure struct {
	name, title, unit string
	tool              string  // program of perftest; "": none
	xdp               bool    // with AF_XDP on a veth pair, which needs root
	baseline          string  // name of the baseline; "": none
	target            float64 // of the ratio, or of the value without a baseline
	atMost            bool    // the target is an upper limit
	value, base       measurement
}

// port returns the kind of port of the devices.
func (f *figure) port() string {
	if f.xdp {
		return roce.PortXDP.String()
	}
	return roce.PortUDP.String()
}

// onXDP returns the figure with AF_XDP.
func (f figure) onXDP(t test, of func(row) float64) figure {
	t.xdp, f.xdp = true, true
	f.name += "_xdp"
	f.title += ", AF_XDP"
	f.value, f.base = t.stock(of), t.own(of)
	return f
}

// The baselines.
const (
	basePerf  = "gorxe perf"
	baseOwn   = "own device"
	baseShort = "1/10 of the messages"
)

const mib = 1 << 20

func figures() []figure {
	bandwidth := test{tool: "ib_write_bw", op: "write-bw", size: 65536, count: 10_000}
	rate := test{tool: "ib_write_bw", op: "write-bw", size: 64, count: 200_000}
	latency := test{tool: "ib_write_lat", op: "write-lat", size: 8, count: 5_000}
	short := rate
	short.count /= 10
	list := []figure{
		{name: "write_bw_64KiB", title: "64 KiB WRITE", unit: "Gb/s", tool: bandwidth.tool,
			baseline: basePerf, target: 0.6,
			value: bandwidth.stock(gbits), base: bandwidth.own(gbits)},
		{name: "write_rate_64B", title: "64 B WRITE", unit: "Mmsg/s", tool: rate.tool,
			baseline: basePerf, target: 0.25,
			value: rate.stock(messages), base: rate.own(messages)},
		{name: "write_lat_8B", title: "8 B WRITE", unit: "us", tool: latency.tool,
			baseline: basePerf, target: 3, atMost: true,
			value: latency.stock(typical), base: latency.own(typical)},
		{name: "data_path_calls", title: "Intercepted calls", unit: "calls", tool: rate.tool,
			baseline: baseShort, target: 1, atMost: true,
			value: rate.stock(intercepted), base: short.stock(intercepted)},
		{name: "service_bw_64KiB", title: "64 KiB WRITE of gorxe perf, through a service",
			unit: "Gb/s", baseline: baseOwn, target: 0.9,
			value: bandwidth.member(gbits), base: bandwidth.own(gbits)},
		{name: "service_lat_8B", title: "8 B WRITE of gorxe perf, through a service", unit: "us",
			baseline: baseOwn, target: 1.5, atMost: true,
			value: latency.member(typical), base: latency.own(typical)},
		{name: "call_p50", title: "Intercepted call, median", unit: "us", target: 8, atMost: true,
			value: func(ctx context.Context, b *bench) (float64, error) {
				r, err := b.calls(ctx)
				return r.p50, err
			}},
		{name: "idle_rss", title: "Memory of an idle supervisor", unit: "MiB", target: 64, atMost: true,
			value: func(ctx context.Context, b *bench) (float64, error) {
				r, err := b.calls(ctx)
				return r.rss / mib, err
			}},
	}
	return append(list, list[0].onXDP(bandwidth, gbits), list[1].onXDP(rate, messages),
		list[2].onXDP(latency, typical))
}

// Names returns the names of the figures.
func Names() (names []string) {
	for _, f := range figures() {
		names = append(names, f.name)
	}
	return names
}

// bench is a run.
type bench struct {
	Config
	self    string // path of gorxe
	local   link   // two addresses of the loopback interface
	veth    link   // the zero value if no figure needs it
	figures []figure
	samples map[string]*samples
}

// samples are the values of a figure and of its baseline, one per round.
type samples struct{ values, base []float64 }

// Run measures the figures, those with AF_XDP only as root or if Config.Only names them. It shows
// its progress on stderr if that is a terminal.
func Run(ctx context.Context, c Config, stderr io.Writer) (_ *Report, err error) {
	if err := errors.Join(kit.Known("figure", c.Only, Names()),
		kit.CheckPlot(c.Plot, false)); err != nil {
		return nil, err
	}
	b := &bench{Config: c, figures: figures(), samples: map[string]*samples{}}
	b.figures = slices.DeleteFunc(b.figures, func(f figure) bool {
		if len(c.Only) == 0 {
			return f.xdp && !privileged()
		}
		return !slices.Contains(c.Only, f.name)
	})
	for i := range b.figures {
		if err := installed(b.figures[i].tool); err != nil {
			return nil, err
		}
	}
	if b.self, err = os.Executable(); err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	closeAll, err := b.open()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	if err := kit.Rounds(ctx, c.Rounds, b.steps(), stderr); err != nil {
		return nil, err
	}
	return b.report(), nil
}

// installed returns an error that says what to do if a program of perftest is not installed.
func installed(tool string) error {
	if tool == "" {
		return nil
	}
	if _, err := exec.LookPath(tool); err != nil {
		return fmt.Errorf("%s is not installed: install perftest and the libibverbs provider rxe "+
			"(Debian: apt-get install perftest ibverbs-providers)", tool)
	}
	return nil
}

// steps returns the measurements of a round.
func (b *bench) steps() (list [][]kit.Step) {
	for i := range b.figures {
		f, s := &b.figures[i], new(samples)
		b.samples[f.name] = s
		steps := []kit.Step{b.step(f, "gorxe run", f.value, &s.values)}
		if f.base != nil {
			steps = append(steps, b.step(f, f.baseline, f.base, &s.base))
		}
		list = append(list, steps)
	}
	return list
}

// step returns a measurement that appends its result to a list.
func (b *bench) step(f *figure, side string, m measurement, list *[]float64) kit.Step {
	return kit.Step{Experiment: f.name, Side: side,
		Run: func(ctx context.Context, _ int) error {
			v, err := m(ctx, b)
			*list = append(*list, v)
			return err
		}}
}
