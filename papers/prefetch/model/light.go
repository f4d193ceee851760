package model

import "fmt"

// Light is a light load: one WRITE of one message at a time, round robin over the QPs. The next
// one is posted when the host sees the completion of the previous one.
type Light struct {
	QPs    int
	Window int  // of the prefetch queue, and the limit for hints
	Hint   bool // the host names the QP to the NIC before it builds the WQE
}

const lightRounds = 4 // measured turns of each QP, after one for warm-up

// RunLight returns the mean latency of a WRITE in microseconds, from the call of PostSend until the
// host sees the completion.
func RunLight(p *Params, l Light) (float64, error) {
	if l.QPs < 1 || l.QPs > MaxQPs {
		return 0, fmt.Errorf("%w: a light load over %d QPs: choose 1 to %d", ErrParams, l.QPs,
			MaxQPs)
	}
	one := *p
	one.Chunk = one.Message // a turn is one message
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

// host is the program that posts, and the peer's NIC, whose lookups always hit: the paper is
// about the requester.
type host struct {
	*nic
	half span // half of a PCIe round trip: a PCIe write
	hint bool
	qps  uint32
	peer wire
	done int
}

// post models PostSend on the next QP: the hint, the WQE, the doorbell.
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

// sent models the message to the peer, its acknowledgment, and the CQE written to the host's
// memory.
func (h *host) sent(*job) {
	pass, cable := spanOf(h.p.Pass), spanOf(h.p.Cable)
	ack := h.peer.send(h.now+pass+cable+pass+pass, h.p.Ack)
	h.at(ack+cable+pass+h.half, func() {
		h.done++
		h.post()
	})
}
