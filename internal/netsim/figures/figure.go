package figures

import (
	"time"

	"github.com/gorxe/gorxe/internal/netsim"
)

// Units of figures.
const (
	unitBW    = "Gb/s"
	unitIndex = "Jain"  // Jain's fairness index
	unitRatio = "ratio" // see the experiment
)

// experiment is a scenario and what is measured in it.
type experiment struct {
	name     string
	about    string // for the table
	bits     float64
	scenario netsim.Scenario
	figures  []figure
}

// figure is one number of an experiment's result.
type figure struct {
	name string
	unit string
	// value computes the number. Nil means the payload of all flows per second in Gb/s; then the
	// targets are about the share of the link.
	value func(*netsim.Result) float64
	// The number must be at least low, and at most high unless that is 0. Both 0 means no target.
	low, high float64
	// of, if not empty, is another figure, in units of which low is given.
	of string
}

// Abbreviations for the lists of experiments.
const (
	gbps = 1e9
	us   = time.Microsecond
	ms   = time.Millisecond
	kib  = 1 << 10
	mib  = 1 << 20
)

// experiments returns all experiments.
func experiments() []experiment { return append(links(), shared()...) }

// Names returns the names of all figures, in the order of the table.
func Names() (list []string) {
	for _, e := range experiments() {
		for _, f := range e.figures {
			list = append(list, f.name)
		}
	}
	return list
}
