package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// PathStats counts marks, CNPs and retransmissions of the QP.
func TestPathStats(t *testing.T) {
	k := newTalk(t, RC)
	if s := k.q.PathStats(); s.Window != firstWindow || s.InFlight != 0 || s.RTT != 0 ||
		s.Retransmits != 0 || s.Congestion != CongestionAdaptive || s.Selective {
		t.Errorf("PathStats() of a new QP = %+v", s)
	}
	k.sayMarked(k.write(0, seq(8)))
	k.sayMarked(k.write(1, seq(8))) // within cnpInterval
	k.listen()
	if s := k.q.PathStats(); s.Marked != 2 || s.SentCNPs != 1 || s.RcvdCNPs != 0 {
		t.Errorf("after two marked packets: %+v", s)
	}
	k.q.cnpReceived(k.now)
	if s := k.q.PathStats(); s.RcvdCNPs != 1 || s.Window >= firstWindow {
		t.Errorf("after a CNP: %+v", s)
	}

	k.post(k.wr(1, OpWrite, 8), k.wr(2, OpWrite, 8))
	k.listen()
	if s := k.q.PathStats(); s.InFlight != 2 {
		t.Errorf("after two WRITEs: %+v", s)
	}
	k.now += 1000
	k.say(nak(0, bth.NAKPSNSequence))
	k.listen()
	if s := k.q.PathStats(); s.Retransmits != 2 || s.RTT == 0 {
		t.Errorf("after a NAK: %+v", s)
	}
}
