package stock

import (
	"context"
	"time"
)

// With -R, clients of later versions of perftest do not disconnect their queue pairs but wait until
// the server does. A server that does not know the test infers its end from the messages and
// barriers.

const (
	// lastToDisconnect is the last version whose clients disconnect by themselves.
	lastToDisconnect = 6.06
	// sendsOver is the time without SENDs after a barrier that means the end. If another size
	// follows, its SENDs come at once.
	sendsOver = 2 * time.Second
	// writesOver is the time without messages that means the end of write-lat, which has no
	// barrier.
	writesOver = 3 * time.Second
	// overInterval is the time between two checks.
	overInterval = 100 * time.Millisecond
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

// lastBarrier reports whether the current barrier is the last one. One-sided bandwidth tests end
// with a report and a barrier. Tests of READs and atomics on one queue pair end with their fourth
// barrier, with or without a report. The caller holds mu.
func (v *serverSession) lastBarrier() bool {
	return v.reported || len(v.peers) == 1 && v.peers[0].OutReads > 1 && v.syncs > latencySyncs
}

// disconnectWhenOver calls disconnect when the messages that the server sees have ended.
func (v *serverSession) disconnectWhenOver(ctx context.Context) {
	ticker := time.NewTicker(overInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		seen, barrier, now := v.seen.Load(), v.barrier.Load(), time.Now().UnixNano()
		over := barrier > seen && now-barrier > int64(sendsOver)
		if v.wrote.Load() {
			over = now-seen > int64(writesOver)
		}
		if seen > 0 && over {
			v.mu.Lock()
			v.disconnect()
			v.mu.Unlock()
			return
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}
