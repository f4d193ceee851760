package sim

import (
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
)

func (w *world) tracef(f string, args ...any) {
	if w.out == nil {
		return
	}
	at := int64(0)
	if w.link != nil {
		at = int64(w.elapsed())
	}
	fmt.Fprintf(w.out, "%12.3f us  %s\n", float64(at)/1000, fmt.Sprintf(f, args...))
}

// tracePort prints every frame that a host sends and receives.
type tracePort struct {
	*loopback.Port
	w   *world
	i   int
	dec frame.Decoder
}

func (p *tracePort) Send(bufs []driver.Buf) (int, error) {
	for _, b := range bufs {
		p.show("sends", b.B)
	}
	return p.Port.Send(bufs)
}

func (p *tracePort) Receive(bufs []driver.Buf) int {
	n := p.Port.Receive(bufs)
	for _, b := range bufs[:n] {
		p.show("gets ", b.B)
	}
	return n
}

func (p *tracePort) show(verb string, b []byte) {
	var pkt bth.Packet
	if r := p.dec.Decode(b, &pkt); r != frame.ReasonOK {
		p.w.tracef("host %d %s a frame of %d bytes: %v", p.i, verb, len(b), r)
		return
	}
	p.w.tracef("host %d %s %s", p.i, verb, describe(&pkt))
}

// describe returns a packet in one line.
func describe(p *bth.Packet) string {
	i := p.Info
	s := fmt.Sprintf("%v QP %#x PSN %#x", i.Opcode, uint32(p.BTH.DestQP()), uint32(p.BTH.PSN()))
	if p.BTH.AckReq() {
		s += " AckReq"
	}
	if i.RETH != 0 {
		s += fmt.Sprintf(" at %#x key %#x length %d", p.RETH().VA(), uint32(p.RETH().RKey()),
			p.RETH().DMALen())
	}
	if i.AtomicETH != 0 {
		s += fmt.Sprintf(" at %#x key %#x", p.AtomicETH().VA(), uint32(p.AtomicETH().RKey()))
	}
	if i.AETH != 0 {
		s += fmt.Sprintf(" %v MSN %d", p.AETH().Syndrome(), p.AETH().MSN())
	}
	return s + fmt.Sprintf(" (%d bytes)", len(p.Payload))
}
