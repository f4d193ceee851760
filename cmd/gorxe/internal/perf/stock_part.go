package perf

import (
	"context"
	"time"
)

// With -R, perftest's clients of later versions do not disconnect their queue pairs: they wait until the server has
// done it. A server that does not know the test finds its end by what is said and done.

const (
	// The last version whose clients disconnect by themselves.
	leavesByItself = 6.06
	// A barrier behind the last SEND is the end if so long no SEND follows: else another size does, at once.
	sendsOver = 2 * time.Second
	// write-lat ends without a barrier.
	writesOver = 3 * time.Second
	partLook   = 100 * time.Millisecond
)

// part disconnects the queue pairs; what they still flush is no failure. The caller holds mu.
func (v *stockServer) part() {
	if v.door == nil || v.srv.Peer.Number() <= leavesByItself || v.parted.Swap(true) {
		return
	}
	for _, c := range v.conns {
		c.Close()
	}
}

// lastBarrier: one-sided bandwidth ends with a report and a barrier; READs and atomics of one queue pair with their
// fourth barrier, with or without a report. The caller holds mu.
func (v *stockServer) lastBarrier() bool {
	return v.reported || len(v.peers) == 1 && v.peers[0].OutReads > 1 && v.syncs > latencySyncs
}

// partWhenOver parts when messages that this end sees have come to an end.
func (v *stockServer) partWhenOver(ctx context.Context) {
	look := time.NewTicker(partLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		seen, barrier, now := v.seen.Load(), v.barrier.Load(), time.Now().UnixNano()
		over := barrier > seen && now-barrier > int64(sendsOver)
		if v.wrote.Load() {
			over = now-seen > int64(writesOver)
		}
		if seen > 0 && over {
			v.mu.Lock()
			v.part()
			v.mu.Unlock()
			return
		}
	}
}
