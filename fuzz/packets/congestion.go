package packets

import "github.com/gorxe/gorxe/bth"

// selectiveAck are acknowledgments with a SelACK that claims packets which the target never sent,
// or that is malformed.
func selectiveAck(g *Generator, emit func([]byte)) {
	const at = bth.HeaderLen + bth.AETHLen
	for range 1 + g.r.IntN(8) {
		p := g.begin(bth.RCAck)
		p.next = g.t.PSN
		if g.r.IntN(3) == 0 {
			p.f.PSN = g.far()
		}
		words := make([]uint32, pick(g, 0, 1, 2, bth.MaxSelACKWords, g.r.IntN(bth.MaxSelACKWords)))
		fill := g.r.IntN(3)
		for i := range words {
			words[i] = pick(g, 0, 1<<32-1, g.r.Uint32(), uint32(1)<<g.r.IntN(32))
			if fill == 0 {
				words[i] = 1<<32 - 1
			}
		}
		p.payload = bth.SelACKHeaderLen + 4*len(words)
		start := g.t.PSN.Add(uint32(g.r.IntN(64)))
		if g.r.IntN(3) == 0 {
			start = g.far()
		}
		s := pick(g, bth.ACKNoLimit, bth.NAKSyndrome(bth.NAKPSNSequence), g.syndrome())
		dups := uint16(g.r.Uint32())
		form := g.r.IntN(8)
		g.note("PSN %#x, %v, %d words from %#x, %d duplicates", uint32(p.f.PSN), s, len(words),
			uint32(start), dups)
		g.end(emit, func(b []byte) {
			bth.PutAETH(b[bth.HeaderLen:], s, bth.MSN(g.r.Uint32()&0xffffff))
			bth.PutSelACK(b[at:], start, dups, words)
			switch form {
			case 0:
				b[at] = byte(g.r.Uint32()) // version
			case 1:
				b[at+1] = byte(g.r.Uint32()) // number of words
			case 2:
				b[at+7] = byte(g.r.Uint32()) // reserved
			}
		})
	}
}

// afterGap are requests whose PSNs leave gaps, repeat and overlap, in any order. A target with
// selective repeat keeps them; then some of the gaps are filled.
func afterGap(g *Generator, emit func([]byte)) {
	first := g.t.PSN
	span := uint32(pick(g, 4, 16, 600, 1<<16, 1<<21))
	for range 2 + g.r.IntN(12) {
		p := g.begin(g.request())
		p.f.PSN = first.Add(uint32(1 + g.r.IntN(int(span))))
		if p.info.HasPayload && !p.info.End && g.r.IntN(4) > 0 {
			p.sized(int(g.t.MTU))
		}
		p.next = first
		g.note("PSN %#x", uint32(p.f.PSN))
		g.end(emit)
	}
	for range g.r.IntN(4) {
		g.begin(g.request())
		g.note("fills a gap")
		g.end(emit)
	}
}

// congestion are congestion notification packets of any form, and marked packets.
func congestion(g *Generator, emit func([]byte)) {
	class := g.t.Address.TrafficClass
	for range 1 + g.r.IntN(16) {
		o := bth.CNP
		if g.r.IntN(2) == 0 {
			o = pick(g, g.request(), pick(g, rcResponses...))
			g.t.Address.TrafficClass = class | 3
		}
		p := g.begin(o)
		if o == bth.CNP {
			p.f.PSN = pick(g, 0, g.t.PSN, g.far())
			p.f.BECN = g.r.IntN(4) > 0
			p.f.FECN = g.r.IntN(8) == 0
			p.sized(pick(g, 16, 16, 16, 0, 1, 15, 17, int(g.t.MTU)))
			p.next = g.t.PSN
		}
		g.note("traffic class %#x, %d bytes", g.t.Address.TrafficClass, p.payload)
		g.end(emit)
		g.t.Address.TrafficClass = class
	}
}
