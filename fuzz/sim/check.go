package sim

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// cnpInterval is the shortest time between two CNPs of a QP.
const cnpInterval = 50 * time.Microsecond

// pristine is the noise that must never change.
var pristine = bytes.Clone(noise)

func copyWord(b []byte, v uint64) { binary.NativeEndian.PutUint64(b, v) }

// finish waits until nothing is sent anymore and checks what is left.
func (w *world) finish() {
	w.timers = nil
	for _, h := range w.hosts {
		h.busy = 0
		h.port.SetUp(true)
	}
	for began := w.elapsed(); w.elapsed()-began < maxQuiet; {
		if w.turn() {
			w.link.Advance(1)
			continue
		}
		next, any := w.next()
		if !any {
			w.settled()
			return
		}
		w.link.AdvanceTo(next)
	}
	w.failf("%v after the last completion something is still being sent", maxQuiet)
}

// settled checks everything when nothing moves anymore.
func (w *world) settled() {
	w.res.Virtual = w.elapsed()
	for _, h := range w.hosts {
		h.check()
		w.checkClasses(h)
	}
	for i := range w.hosts {
		w.checkCounters(i)
	}
	w.res.Hash = w.link.TraceHash() ^ w.digest
	for i, h := range w.hosts {
		c := h.dev.Counters()
		w.res.Counters[i] = c
		w.res.Packets += c.RcvdPkts
		w.res.Frames += c.TxFrames
		w.res.Bytes += c.SentBytes
		w.must(h.dev.Close(), "close the device")
	}
}

// check compares all memory with the model.
func (h *host) check() {
	for i := range h.added {
		h.checkShared(i)
	}
	for _, r := range h.recvs {
		if r.s != nil {
			h.w.failf("host %d: receive %d never completed", h.i, r.id)
		}
	}
	for _, g := range h.regions {
		g.check()
	}
	if !bytes.Equal(noise, pristine) {
		copy(noise, pristine)
		h.w.failf("host %d: memory that may only be read was written", h.i)
	}
}

// checkShared checks that a shared word grew by at least the additions known to have succeeded and
// at most by those posted.
func (h *host) checkShared(i int) {
	c := &h.added[i]
	start := binary.NativeEndian.Uint64(h.shared.model(8*i, 8))
	sum := word(h.shared.at(8*i, 8)) - start
	if sum < uint64(len(c.seen)) || sum > c.asked {
		h.w.failf("host %d: shared word %d grew by %d; %d of %d additions succeeded", h.i, i, sum,
			len(c.seen), c.asked)
	}
	for v := range c.seen {
		if v-start >= sum {
			h.w.failf("host %d: shared word %d was %#x; it started at %#x and grew by %d", h.i, i,
				v, start, sum)
		}
	}
	h.shared.accept(8*i, 8)
}

// checkCounters compares what host i sent with what the other received.
func (w *world) checkCounters(i int) {
	h, far := w.hosts[i], w.hosts[1-i]
	tx, rx, f := h.dev.Counters(), far.dev.Counters(), w.link.Faults(i, 1-i)
	w.tracef("host %d counters %+v", i, tx)
	w.tracef("link from host %d: %+v", i, f)
	equal := func(what string, a, b uint64) {
		if a != b {
			w.failf("host %d to %d: %s: %d and %d", i, 1-i, what, a, b)
		}
	}
	atMost := func(what string, a, b uint64) {
		if a > b {
			w.failf("host %d to %d: %s: %d, want at most %d", i, 1-i, what, a, b)
		}
	}
	equal("packets built, frames sent or refused", tx.SentPkts, tx.TxFrames+tx.TxDropped)
	equal("frames sent, frames on the link", tx.TxFrames, f.Frames)
	arrived := f.Frames - f.Lost + f.Duplicated - w.link.Bottleneck(1-i).Dropped
	atMost("frames received, frames on the link", rx.RxFrames, arrived)
	if !w.sc.flaps {
		equal("frames refused", tx.TxDropped, 0)
		if f.Overflow == 0 { // otherwise frames count as retransmitted that were not
			equal("frames on the link, frames received", arrived, rx.RxFrames)
		}
	}
	drops := rx.DropNotOurs
	for _, n := range rx.Drops {
		drops += n
	}
	equal("frames received, packets handled", rx.RxFrames, rx.RcvdPkts+drops)
	atMost("frames dropped by the decoder, for corrupted ones", drops, 2*f.Corrupted)
	equal("completions", tx.Completions, h.completions)
	equal("flushed", tx.Flushed, h.flushed)
	equal("completion errors", tx.CompletionErrors, h.failed)
	equal("events lost", tx.EventsLost+tx.EventsDropped, 0)
	equal("bytes of packets held for QPs that were closed", tx.ParkedBytes, 0)
	atMost("CNPs sent by the QPs at the highest rate", tx.SentCNPs,
		w.qps/2*(uint64(w.elapsed()/cnpInterval)+1))
	if w.sc.clean && f.Overflow+w.link.Faults(1-i, i).Overflow == 0 {
		w.checkClean(i, &tx)
	}
	for _, c := range w.sc.conns {
		if c.typ != roce.RC {
			return // the rest is about RC only
		}
	}
	if f.Duplicated == 0 {
		atMost("RNR NAKs received, sent", rx.RcvdRNR, tx.SentRNR)
		atMost("sequence NAKs received, sent", rx.RcvdSeqNAK, tx.SentSeqNAK+tx.SentSelAcks)
		atMost("CNPs received, sent", rx.RcvdCNPs, tx.SentCNPs)
	}
}

// checkClean checks that on a perfect link nothing is sent twice except after an RNR NAK or a late
// answer.
func (w *world) checkClean(i int, c *roce.Counters) {
	if c.SentSeqNAK+c.ImpliedNAK > 0 && w.hosts[1-i].dev.Counters().SentRNR+c.SentRNR == 0 &&
		c.Probes == 0 {
		w.failf("host %d: gaps on a perfect link: %d sequence NAKs, %d implied", i, c.SentSeqNAK,
			c.ImpliedNAK)
	}
	if c.AckTimeouts > 0 && w.elapsed() < time.Second {
		w.failf("host %d: %d Local ACK Timeouts on a perfect link", i, c.AckTimeouts)
	}
}
