package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// A response that skips a READ requests the READ again (IBA 9.7.6.1), but only once: responses that
// were in flight at that time carry no new information. If each counted, each response would cause
// more responses, until the path is full of them and QPs fail on lossy links.
func TestStaleResponsesDoNotMultiply(t *testing.T) {
	w := newWorld(t, 1)
	a, _ := w.pair(RC)
	w.filter = func(int, *bth.Packet) bool { return false } // everything is lost
	e, peer := w.ends[0], w.ends[1]
	read := SendWR{ID: 1, Op: OpRead, Flags: Signaled, SGEs: []SGE{e.sge(0, 8192)}}
	read.RemoteAddr, read.RKey = peer.remote(0)
	write := SendWR{ID: 2, Op: OpWrite, Flags: Signaled, SGEs: []SGE{e.sge(0, 8192)}}
	write.RemoteAddr, write.RKey = peer.remote(0)
	w.post(a, read, write)
	w.idle(20_000)
	sent := w.pkts
	for range 100 { // the responder acknowledges the WRITE repeatedly; the READ's response is lost
		b := make([]byte, bth.RCAck.Info().HeaderLen)
		bth.PutBTH(b, &bth.BTHFields{Opcode: bth.RCAck, PKey: bth.DefaultPKey, DestQP: a.QPN(),
			PSN: wirePSN(a.max - 1)})
		bth.PutAETH(b[bth.HeaderLen:], bth.ACKNoLimit, 2)
		e.HandlePacket(w.now, w.parse(1, b))
		w.idle(3000)
	}
	if got := w.pkts - sent; got > 60 || a.State() != RTS {
		t.Errorf("%d packets sent for 100 stale ACKs, QP in %v", got, a.State())
	}
}
