package qp

// Ports that send runs (Config.Runs) combine consecutive packets of a QP that have the same length.
// The first packet of a WRITE is longer than the others, so a message needs at least two runs, and
// each interruption in its middle costs another one. The interruption would also last: if a batch
// of packets begins in the middle of a message, so do the following batches. So the turn of a QP is
// longer, and the caller of PollTransmit ends a batch where a message ends; see Transmit.Ended. The
// last packet of a READ response is longer than those before it, but as long as the first one of
// the next response. So a batch ends before it if another response follows.

// turn returns how many bytes the QP that is served next may send.
func (e *Engine) turn() uint32 {
	if !e.runs {
		return quantum
	}
	return min(max(longRound/uint32(e.runq.Len()+1), quantum), longTurn)
}
