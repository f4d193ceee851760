package figures

import (
	"fmt"
	"time"

	"github.com/gorxe/gorxe/internal/netsim"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// curveLosses are the losses of the curves, as shares of the packets.
var curveLosses = []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1}

// samples is the number of points of a curve over time.
const samples = 150

// lossLine is a curve of the goodput by loss.
type lossLine struct {
	op        roce.Op
	selective bool
}

func lossLines() []lossLine {
	return []lossLine{{roce.OpWrite, true}, {roce.OpWrite, false}, {roce.OpRead, true},
		{roce.OpRead, false}}
}

func (l lossLine) String() string {
	what, how := "WRITE", "go-back-N"
	if l.op == roce.OpRead {
		what = "READ"
	}
	if l.selective {
		how = "selective repeat"
	}
	return what + ", " + how
}

// name returns the name of the experiment with a loss.
func (l lossLine) name(loss float64) string { return fmt.Sprintf("%v, %g", l, loss) }

const (
	joining   = "joining"
	joinEvery = 50 * ms
)

// curves returns the experiments that only the plot needs.
func curves() (list []experiment) {
	for _, l := range lossLines() {
		for _, loss := range curveLosses {
			row := linkRow{bits: sharedBits, rtt: sharedRTT, loss: loss, frames: 4096,
				warmup: 50 * ms, time: 150 * ms, write: load64K, read: reads64K}
			e := row.experiment(l.op, l.selective)
			e.name, e.figures = l.name(loss), nil
			list = append(list, e)
		}
	}
	flows := senders(4)
	for i := range flows {
		flows[i].Start = time.Duration(i) * joinEvery
	}
	join := experiment{name: joining, bits: sharedBits,
		scenario: sharedScenario(flows, queues()[0])}
	join.scenario.Warmup, join.scenario.Time = 0, 5*joinEvery
	return append(list, join)
}

// setSample makes a scenario take samples.
func setSample(s *netsim.Scenario) { s.Sample = (s.Warmup + s.Time) / samples }

// Panels implements kit.Report. It draws the experiments that were run.
func (r *Report) Panels() (list []kit.Panel) {
	list = append(list, r.lossPanel())
	const longLink = "10 Gb/s, 49 ms, 1 QP, WRITE"
	longLines := []overTime{
		{"wr_10g_49ms_loss0_sr", "no loss"},
		{"wr_10g_49ms_loss0.001_sr", "0.001 % loss, selective repeat"},
		{"wr_10g_49ms_loss0.001_gbn", "0.001 % loss, go-back-N"},
	}
	list = append(list,
		r.panel(longLink, "Gb/s", time.Second, longLines, rates(0)),
		r.panel(longLink, "window, 1000 packets", time.Second, longLines, thousands(windows(0))),
		r.flows("4 QPs that start one after the other", "Gb/s", joining, time.Millisecond,
			[]string{"first", "second", "third", "fourth"}, rates),
	)
	list = append(list, r.flows("RTT 100 us against 500 us", "Gb/s", "rtt_short_long",
		time.Millisecond, []string{"100 us", "500 us"}, rates))
	both := []string{"gorxe", "TCP CUBIC"}
	const nextTo = "1 QP next to TCP, 1 Gb/s, 10 ms"
	list = append(list,
		r.flows(nextTo, "Gb/s", "tcp_cubic_share", time.Second, both, rates),
		r.flows(nextTo, "window, packets", "tcp_cubic_share", time.Second, both, windows),
		r.panel("32 hosts to 1: queue of the switch", "KB", time.Millisecond, []overTime{
			{"incast_32", "queue of 1 BDP"}, {"incast_32_ecn", "queue of 1 BDP, ECN"},
			{"incast_32_short", "queue of 1/8 BDP"},
			{"incast_32_short_ecn", "queue of 1/8 BDP, ECN"},
		}, func(s *netsim.Sample) float64 { return float64(s.Queue) / 1e3 }),
	)
	shown := list[:0]
	for _, p := range list {
		if c := p.(*kit.Curves); len(c.Lines) > 0 {
			shown = append(shown, p)
		}
	}
	return shown
}

// lossPanel shows the share of the link by loss.
func (r *Report) lossPanel() *kit.Curves {
	c := &kit.Curves{Title: "25 Gb/s, 100 us, 1 QP", X: "loss, %", Y: "share of the link",
		LogX: true, ZeroY: true}
	for _, l := range lossLines() {
		line := kit.Line{Name: l.String(), Style: kit.Markers}
		for _, loss := range curveLosses {
			if o := r.results[l.name(loss)]; o != nil {
				line.Add(loss*100, o.Bits/o.bits)
			}
		}
		if len(line.X) > 0 {
			c.Lines = append(c.Lines, line)
		}
	}
	return c
}

// overTime is a curve over time: an experiment and its name in the plot.
type overTime struct{ experiment, name string }

// rates and windows return what a panel shows of a flow.
func rates(flow int) func(*netsim.Sample) float64 {
	return func(s *netsim.Sample) float64 { return s.Bits[flow] / gbps }
}

func windows(flow int) func(*netsim.Sample) float64 {
	return func(s *netsim.Sample) float64 { return s.Windows[flow] }
}

func thousands(f func(*netsim.Sample) float64) func(*netsim.Sample) float64 {
	return func(s *netsim.Sample) float64 { return f(s) / 1e3 }
}

// panel shows a value of several experiments over time.
func (r *Report) panel(title, y string, unit time.Duration, list []overTime,
	value func(*netsim.Sample) float64) *kit.Curves {
	c := timeCurves(title, y, unit)
	for _, l := range list {
		if o := r.results[l.experiment]; o != nil {
			c.Lines = append(c.Lines, o.line(l.name, unit, value))
		}
	}
	return c
}

// flows shows a value of each flow of an experiment over time.
func (r *Report) flows(title, y, name string, unit time.Duration, names []string,
	value func(flow int) func(*netsim.Sample) float64) *kit.Curves {
	c := timeCurves(title, y, unit)
	o := r.results[name]
	for i := 0; o != nil && i < len(names); i++ {
		c.Lines = append(c.Lines, o.line(names[i], unit, value(i)))
	}
	return c
}

func timeCurves(title, y string, unit time.Duration) *kit.Curves {
	x := "time, s"
	if unit == time.Millisecond {
		x = "time, ms"
	}
	return &kit.Curves{Title: title, X: x, Y: y, ZeroY: true}
}

func (o *outcome) line(name string, unit time.Duration,
	value func(*netsim.Sample) float64) kit.Line {
	l := kit.Line{Name: name}
	for i := range o.Samples {
		s := &o.Samples[i]
		l.Add(float64(s.At)/float64(unit), value(s))
	}
	return l
}
