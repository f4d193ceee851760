package bench

import (
	"fmt"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/papers/kit/paper"
)

// plot draws a panel a figure and a bar a lane, into a file whose name says the format.
func (b *bench) plot(name string) error {
	var panels []paper.Panel
	for i := range b.figures {
		panels = append(panels, b.figures[i].panel(b.samples[b.figures[i].name]))
	}
	_, err := paper.SavePlots(name, panels)
	return err
}

// panel draws one figure.
func (f *figure) panel(samples map[string][]sample) paper.Panel {
	bars := &paper.Bars{Title: f.title, X: f.unit + ", more is better"}
	if f.unit == unitLatency {
		bars.X = "us a round trip, less is better"
	}
	for i, l := range f.lanes {
		bars.Bars = append(bars.Bars, paper.Bar{Label: l.label(), Values: kit.Column(samples[l.name], valueOf), Own: i == 0})
	}
	return bars
}

// label is the lane's name in the picture.
func (l *lane) label() string {
	switch {
	case l.loss > 0:
		return fmt.Sprintf("%s, %g %% loss", l.name, l.loss*100)
	case l.name == laneLossless:
		return "gorxe, no loss"
	case l.name == laneTCPLossless:
		return "tcp, no loss"
	}
	return l.name
}
