package indirect

import (
	"fmt"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// experiment is one point of the paper's figures.
type experiment struct {
	name     string
	frp, lfp float64 // probabilities of failed registrations and of lost frames
	mtu      roce.MTU
	pings    bool
	paper    *float64 // ratio of the total times, indirect to direct; nil if the paper gives none
}

// percents are the points of the curves.
var percents = []int{0, 1, 2, 5, 8, 10}

// pingSizes are the payloads of the three pings in bytes, and the payloads of the frames beside
// them.
var pingSizes = []int{256, 512, 1024}

const paperMTU = 1024

func experiments() []experiment {
	var list []experiment
	for _, p := range percents {
		f := float64(p) / 100
		list = append(list, experiment{name: fmt.Sprintf("frp_%d", p), frp: f, mtu: paperMTU})
	}
	for _, p := range percents {
		f := float64(p) / 100
		list = append(list, experiment{name: fmt.Sprintf("lfp_%d", p), lfp: f, mtu: paperMTU})
	}
	for i, p := range []int{1, 5, 10} {
		f := float64(p) / 100
		says := []float64{0.981, 0.951, 0.912}[i] // section 2.1: 1.9, 4.9 and 8.8 % less time
		list = append(list, experiment{
			name: fmt.Sprintf("frp_lfp_%d", p), frp: f, lfp: f, mtu: paperMTU,
			paper: kit.Says(says),
		})
	}
	for i, n := range pingSizes {
		says := []float64{0.880, 0.864, 0.908}[i] // section 2.2: 12.0, 13.6 and 9.2 % less time
		list = append(list, experiment{
			name: fmt.Sprintf("pings_%d", n), pings: true, mtu: roce.MTU(n), paper: kit.Says(says),
		})
	}
	return list
}

func names(list []experiment) []string {
	s := make([]string, len(list))
	for i := range list {
		s[i] = list[i].name
	}
	return s
}

// Names returns the names of the experiments.
func Names() []string { return names(experiments()) }
