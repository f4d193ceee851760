package packetfuzz

import (
	"math/rand/v2"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/fuzz/packets"
)

const (
	// randomErrors is the kind of the cases that are not of a class.
	randomErrors = "random errors"
	maxPackets   = 8 // of a random case
)

// plan is what a case needs before its packets can be made.
type plan struct {
	r     *rand.Rand
	class *packets.Class // nil: random errors
	// readFirst means that the host should have a READ outstanding, and that PSNs count from its
	// requests.
	readFirst bool
	transport bth.Transport
}

func newPlan(seed, n uint64) *plan {
	p := &plan{r: rand.New(rand.NewPCG(seed, n)), transport: bth.RC}
	if all := packets.Classes(); p.r.IntN(2) == 0 {
		p.class = &all[p.r.IntN(len(all))]
	}
	p.readFirst = p.r.IntN(8) == 0
	switch p.r.IntN(8) {
	case 0:
		p.transport = bth.UC
	case 1:
		p.transport = bth.UD
	}
	return p
}

func (p *plan) name() string {
	if p.class == nil {
		return randomErrors
	}
	return p.class.Name
}

// make emits the frames of the case for a target. It returns the PSN that the target expects
// afterwards if it accepts all valid packets.
func (p *plan) make(t packets.Target, emit func(f []byte)) bth.PSN {
	t.Transport = p.transport
	t.Responses = p.readFirst || p.r.IntN(4) == 0
	t.Sound = p.r.Float64()
	t.SrcQPN = bth.QPN(p.r.Uint32() & 0xffffff)
	blind := bth.QPN(p.r.Uint32() & 0xffffff)
	if t.QPN == 0 {
		t.QPN = blind
	}
	g := packets.New(p.r.Uint64(), t)
	if p.class != nil {
		g.Make(p.class, emit)
		return g.Target().PSN
	}
	for range 1 + p.r.IntN(maxPackets) {
		emit(g.Frame())
	}
	return g.Target().PSN
}
