package deterministic

import (
	"context"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/loopback"
)

// wire observes the packets that leave the first device, and can lose one of them.
type wire struct {
	n       *network
	dec     frame.Decoder
	pkt     bth.Packet
	streams map[bth.QPN]int     // by the receiver's QP
	last    map[bth.QPN]bth.PSN // the last new packet, by the receiver's QP
	learns  int                 // the stream that sends alone, or -1
	order   []int               // stream of each packet with data that is no retransmission

	// loses is the stream whose packet after the next skip ones is lost, or -1.
	loses, skip int
}

func newWire(n *network) *wire {
	w := &wire{n: n, streams: map[bth.QPN]int{}, last: map[bth.QPN]bth.PSN{}, learns: -1, loses: -1}
	n.bed.Link.SetFilter(0, 1, w.see)
	return w
}

// see implements loopback.Filter.
func (w *wire) see(f []byte) loopback.Action {
	if w.dec.Decode(f, &w.pkt) != frame.ReasonOK || len(w.pkt.Payload) < pathMTU {
		return loopback.Pass
	}
	qpn, psn := w.pkt.BTH.DestQP(), w.pkt.BTH.PSN()
	if last, ok := w.last[qpn]; ok && !psn.After(last) {
		return loopback.Pass // a retransmission
	}
	w.last[qpn] = psn
	if w.learns >= 0 {
		w.streams[qpn] = w.learns
		return loopback.Pass
	}
	s, ok := w.streams[qpn]
	if !ok {
		return loopback.Pass
	}
	w.order = append(w.order, s)
	if s != w.loses {
		return loopback.Pass
	}
	if w.skip--; w.skip >= 0 {
		return loopback.Pass
	}
	w.loses = -1
	return loopback.Drop
}

// learn lets each stream send a message alone, to find out which packets belong to it.
func (w *wire) learn(ctx context.Context, streams []*stream) error {
	for i, s := range streams {
		w.learns = i
		goal := w.n.count() + 1
		if err := s.send(); err != nil {
			return err
		}
		if err := w.n.until(ctx, func() bool { return w.n.count() >= goal }); err != nil {
			return err
		}
		if err := w.n.bed.Sim.Sleep(pause); err != nil {
			return err
		}
	}
	w.learns = -1
	return nil
}
