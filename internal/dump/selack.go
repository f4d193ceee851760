package dump

import (
	"fmt"
	"strings"

	"github.com/gorxe/gorxe/bth"
)

// selACK is the selective acknowledgment in an ACKNOWLEDGE as JSON.
type selACK struct {
	Duplicates uint16      `json:"duplicates"` // packets received more than once, modulo 2^16
	Start      uint32      `json:"start"`      // PSN of the first bit of the bitmap
	Packets    int         `json:"packets"`    // bits of the bitmap
	Held       [][2]uint32 `json:"held"`       // first and last PSN of each run of held packets
}

// selACKOf returns the selective acknowledgment of a packet, or nil if it has none.
func selACKOf(p *bth.Packet) *selACK {
	if p.Info.Op != bth.OpAck {
		return nil
	}
	h, ok := bth.ParseSelACK(p.Payload)
	if !ok {
		return nil
	}
	s := &selACK{Duplicates: h.Duplicates(), Start: uint32(h.Start()), Packets: h.Bits(),
		Held: [][2]uint32{}}
	for from, end := h.Run(0); from < h.Bits(); from, end = h.Run(end) {
		s.Held = append(s.Held, [2]uint32{uint32(h.Start().Add(uint32(from))),
			uint32(h.Start().Add(uint32(end - 1)))})
	}
	return s
}

// maxRuns is the number of runs of held packets in a line of text.
const maxRuns = 8

// String formats the acknowledgment as text, such as "held 0x000501-0x000503 0x000507 dup 2".
func (s *selACK) String() string {
	var b strings.Builder
	b.WriteString("held")
	if len(s.Held) == 0 {
		b.WriteString(" none")
	}
	for i, r := range s.Held {
		if i == maxRuns {
			fmt.Fprintf(&b, " and %d more", len(s.Held)-i)
			break
		}
		fmt.Fprintf(&b, " %v", bth.PSN(r[0]))
		if r[1] != r[0] {
			fmt.Fprintf(&b, "-%v", bth.PSN(r[1]))
		}
	}
	fmt.Fprintf(&b, " dup %d", s.Duplicates)
	return b.String()
}
