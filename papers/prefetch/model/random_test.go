package model

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// For random NICs and loads the model terminates, and no line exceeds its rate.
func TestRandomNIC(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string, least,
			top int) int {
			return rapid.IntRange(least, top).Draw(t, what)
		}
		p := Default()
		for k := range Kinds {
			p.Cache[k] = draw(k.String(), 1, 80)
			p.Size[k] = draw("size of "+k.String(), 1, 600)
		}
		p.Slots, p.Reads = draw("slots", 1, 5), draw("reads", 1, 300)
		p.Message = draw("message", 1, 5000)
		p.Chunk = draw("chunk", p.Message, 20_000)
		p.Posted = draw("posted", 1, 100)
		p.PCIeRate = int64(draw("PCIe", 1, 400)) * 1e9
		p.PCIeRTT = time.Duration(draw("RTT", 1, 2000))
		p.Hit = time.Duration(draw("hit", 0, 50))
		if err := p.Check(); err != nil {
			t.Fatal(err)
		}
		l := Load{
			QPs: draw("QPs", 1, 100), MRs: draw("MRs", 1, 100), Window: draw("window", 0, 100),
			Random: rapid.Bool().Draw(t, "random"), Units: rapid.Bool().Draw(t, "units"), Seed: 1,
		}
		r, err := Run(&p, l)
		if err != nil {
			t.Fatal(err)
		}
		// Reads are counted when they are requested: a few percent may be in flight at the start
		// or the end.
		if r.Mops <= 0 || r.Mops > p.Peak()*1.02 || r.PCIe > 1.1 {
			t.Fatalf("Run() = %.2f Mop/s and %.3f of PCIe, but the link allows %.2f Mop/s", r.Mops,
				r.PCIe, p.Peak())
		}
		us, err := RunLight(&p, Light{QPs: l.QPs, Window: l.Window, Hint: l.Random})
		if err != nil {
			t.Fatal(err)
		}
		// A WRITE without misses: building the WQE, doorbell, two reads, four passes, CQE.
		if least := (p.Prepare + 3*p.PCIeRTT + 4*p.Pass + 2*p.Cable).Seconds() * 1e6; us < least*(1-1e-9) {
			t.Fatalf("RunLight() = %.3f us, want at least %.3f", us, least)
		}
	})
}
