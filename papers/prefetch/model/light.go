package model

import "fmt"

// Light is a light load: one WRITE of one message at a time, over QPs in turns, the next when the completion of the last
// is seen.
type Light struct {
	QPs    int
	Window int  // of the scheduler's prefetching, and the bound for hints
	Hint   bool // the host tells the NIC of the QP before it builds the WQE
}

const lightRounds = 4 // each QP's turns measured, after one that is not

// RunLight measures the mean latency of a WRITE in microseconds, from the call of PostSend to the completion seen.
func RunLight(p *Params, l Light) (float64, error) {
	if l.QPs < 1 || l.QPs > MaxQPs {
		return 0, fmt.Errorf("%w: a light load over %d QPs; choose 1 to %d", ErrParams, l.QPs, MaxQPs)
	}
	one := *p
	one.Chunk = one.Message // a turn is the one message that is posted
	n, err := newNIC(&one, &clock{}, l.QPs, l.QPs, l.Window)
	if err != nil {
		return 0, err
	}
	h := &host{nic: n, half: spanOf(p.PCIeRTT) / 2, hint: l.Hint, qps: uint32(l.QPs)}
	h.peer.rate = p.LinkRate
	n.sent = h.sent
	h.post()
	for h.done < l.QPs {
		n.step()
	}
	start := n.now
	for last := h.done + lightRounds*l.QPs; h.done < last; {
		n.step()
	}
	return float64(n.now-start) / float64(lightRounds*l.QPs) / float64(1000*nanosecond), nil
}

// host is a program that posts, and the peer's NIC, which has all that it needs at hand: the paper looks at the requester.
type host struct {
	*nic
	half span // of a PCIe round trip: a write, either way
	hint bool
	qps  uint32
	peer wire
	done int
}

// post is PostSend on the next QP: the hint, the WQE, the doorbell.
func (h *host) post() {
	qp := uint32(h.done) % h.qps
	if h.hint {
		h.at(h.now+h.half, func() {
			if h.queue.BelowWindow() {
				h.chain(QPC, qp, QPC, h.taken[qp]) // the WQE is not written yet
			}
		})
	}
	h.at(h.now+spanOf(h.p.Prepare)+h.half, func() {
		h.push(qp)
		h.advance()
	})
}

// sent follows the message to the peer, its acknowledgement back, and the CQE into the host's memory.
func (h *host) sent(*job) {
	pass, cable := spanOf(h.p.Pass), spanOf(h.p.Cable)
	ack := h.peer.send(h.now+pass+cable+pass+pass, h.p.Ack)
	h.at(ack+cable+pass+h.half, func() {
		h.done++
		h.post()
	})
}
