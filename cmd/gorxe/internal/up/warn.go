package up

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/gorxe/gorxe/roce"
)

const (
	// warnCheck is the interval between two readings of the counters.
	warnCheck = 5 * time.Second
	// warnInterval is the shortest time between two warnings of one kind.
	warnInterval = time.Minute
)

// warning is a kind of packet that honest peers of this host rarely send.
type warning struct{ counter, text string }

var warnings = []warning{
	{"bad_rkey", "requests with a wrong R_Key, address range or access right"},
	{"out_of_window", "packets of connections with an implausible PSN"},
	{"drop_qkey", "datagrams with a wrong Q_Key"},
	{"drop_pkey", "packets of another partition"},
	{"drop_peer_address", "packets of connections from another address"},
	{"drop_source", "datagrams from an address that cannot be a peer"},
	{"drop_mac", "packets with another destination MAC address"},
	{"drop_vlan", "datagrams of another VLAN"},
	{"gsi_refused", "malformed messages to the connection manager"},
	{"cm_bad_pkey", "connection requests for another partition"},
	{"cm_unknown_id", "messages about unknown connections"},
	{"cm_wrong_peer", "messages about connections of another peer"},
	{"cm_drop_rate", "messages to the connection manager beyond the rate limit"},
	{"cm_drop_peer", "connection requests from addresses that are not permitted"},
	{"cm_stale", "connection requests with the QP of another connection"},
	{"cm_drop_source", "connection requests beyond their source's share"},
	{"cm_drop_half_open", "connection requests beyond the limit of half-open connections"},
	{"cm_drop_answer", "refusals not sent because there were too many"},
}

// warner turns growing counters into warnings, at most one per kind and warnInterval.
type warner struct {
	mu       sync.Mutex
	reported map[string]uint64 // counter at the last warning
	next     map[string]time.Time
}

// check calls report with the number of new packets of each kind that is due.
func (w *warner) check(now time.Time, c *roce.Counters, report func(warning, uint64)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.reported == nil {
		w.reported, w.next = map[string]uint64{}, map[string]time.Time{}
	}
	for _, k := range warnings {
		total := c.Get(k.counter)
		if n := total - w.reported[k.counter]; n > 0 && !now.Before(w.next[k.counter]) {
			w.reported[k.counter], w.next[k.counter] = total, now.Add(warnInterval)
			report(k, n)
		}
	}
}

// run prints warnings until ctx ends.
func (w *warner) run(ctx context.Context, dev *roce.Device, show *printer) {
	every(ctx, warnCheck, func() { w.now(dev, show) })
}

// every calls f at intervals until ctx ends.
func every(ctx context.Context, interval time.Duration, f func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if ctx.Err() == nil {
				f()
			}
		}
	}
}

// now prints the warnings that are due.
func (w *warner) now(dev *roce.Device, show *printer) {
	c := dev.Counters()
	w.check(time.Now(), &c, show.warning)
}

// warning prints the number of new packets of a kind.
func (s *printer) warning(k warning, n uint64) {
	text := fmt.Sprintf("%s: %d new (%s)", k.text, n, k.counter)
	s.print(line{Event: "warning", Counter: k.counter, Count: n, Message: text}, func() {
		fmt.Fprintln(s.diag, text)
	})
}
