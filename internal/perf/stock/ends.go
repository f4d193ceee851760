package stock

import (
	"context"
	"time"

	"github.com/gorxe/gorxe/internal/perf"
)

// With -R, clients of later versions of perftest do not disconnect their queue pairs but wait until
// the server does. perftest's servers know the test. This server recognizes its end as follows:
//
//   - One-sided bandwidth tests end with a report and a barrier, and tests of READs and atomics on
//     one queue pair with their fourth barrier.
//   - Tests with SENDs end with a barrier. In a test of all sizes (-a), there are barriers between
//     the sizes too. Such a test begins with messages of 2 bytes, so any other first size means
//     that the first barrier after a message is the last one.
//   - write-lat has no barrier. It ends with its last message, if the server's user has told their
//     number (-n).
//
// In two cases, the client sends nothing by which the server could recognize the end: after
// write-lat without -n, and after a test with SENDs of 2 bytes if the server's user has given none
// of -s, -n and -a. The client then waits without a time limit, and its connection stays open. Only
// then, silence for overTime means the end.

const (
	// lastToDisconnect is the last version whose clients disconnect by themselves.
	lastToDisconnect = 6.06
	// overTime is the silence that means the end if nothing else can tell. A client on a busy host
	// may pause for seconds.
	overTime = 10 * time.Second
	// answerTime is the time between the last barrier and the end. The client reads the answer to
	// the barrier before it learns that its queue pairs were disconnected.
	answerTime = 500 * time.Millisecond
	// overInterval is the time between two checks.
	overInterval = 50 * time.Millisecond
	// firstSize is the first size of a test of all sizes.
	firstSize = 2
)

// disconnect disconnects the queue pairs. Work requests that are then flushed are no error. The
// caller holds mu.
func (v *serverSession) disconnect() {
	if v.acceptor == nil || v.msgs.Peer.Number() <= lastToDisconnect || v.disconnected.Swap(true) {
		return
	}
	for _, c := range v.conns {
		c.Close()
	}
}

// testOver is disconnect without mu.
func (v *serverSession) testOver() {
	v.mu.Lock()
	v.disconnect()
	v.mu.Unlock()
}

// lastBarrier reports whether the current barrier is the last one of a one-sided test. The caller
// holds mu.
func (v *serverSession) lastBarrier() bool {
	return v.reported || len(v.peers) == 1 && v.peers[0].OutReads > 1 && v.syncs > latencySyncs
}

// expect sets the time at which the test is over unless something happens. 0 means never.
func (v *serverSession) expect(over time.Time) {
	at := int64(0)
	if !over.IsZero() {
		at = over.UnixNano()
	}
	v.overAt.Store(at)
}

// disconnectWhenSilent disconnects the queue pairs at the time that expect has set.
func (v *serverSession) disconnectWhenSilent(ctx context.Context) {
	ticker := time.NewTicker(overInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if at := v.overAt.Load(); at != 0 && time.Now().UnixNano() > at {
			v.testOver()
			return
		}
	}
}

// mayHaveAllSizes reports whether the test may be one of all sizes. known means that it certainly
// is.
func (h *messageHandler) mayHaveAllSizes() (may, known bool) {
	switch s := h.server; {
	case s.AllSizes:
		return true, true
	case s.Size != 0 || s.Iterations != 0:
		return false, true
	}
	return h.firstBytes == firstSize, false
}

// passBarrier handles a barrier, after all messages that the client sent before it.
func (h *messageHandler) passBarrier() {
	h.seen++
	h.barriers++
	h.checkEnd()
	h.handled <- struct{}{}
}

// checkEnd recognizes the end of a test with SENDs by the barriers that follow a message.
func (h *messageHandler) checkEnd() {
	if h.firstBytes == 0 || h.memory != nil {
		return // before the first message, or write-lat
	}
	needed := 1
	if may, known := h.mayHaveAllSizes(); may {
		switch {
		case h.bytes != perf.LargestSize && known:
			return
		case h.bytes != perf.LargestSize:
			h.expect(time.Now().Add(h.overTime()))
			return
		case h.pattern == streaming:
			needed = 2 // one after each size, and the last one
		}
	}
	if h.barriers >= needed {
		h.expect(time.Now().Add(answerTime))
	}
}

// lastWrite reports whether the current message is the last one of write-lat, as far as the number
// of messages is known.
func (h *messageHandler) lastWrite() bool {
	allSizes, _ := h.mayHaveAllSizes()
	return h.count == int64(h.server.Iterations) && (!allSizes || h.bytes == perf.LargestSize)
}
