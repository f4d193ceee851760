package soak

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"
)

// stat indexes the counts of the summary.
type stat int

const (
	messages stat = iota
	bytesMoved
	atomics
	windows
	srqMessages
	srqHostile
	srqLimits
	datagramsGot
	unreliableGot
	connected
	refused
	qps
	regions
	devicesMemory
	devicesXDP
	hostilePackets
	hostileOther
	hostileReplays
	hostileMADs
	hostileAnswers
	victimsKilled
	dropped
	frames
	lost
	reordered
	duplicated
	corrupted
	plans
	measured
	numStats
)

var statNames = [numStats]string{
	messages:       "operations verified, RC",
	bytesMoved:     "bytes verified, RC",
	atomics:        "atomics verified",
	windows:        "memory windows and fast registrations used and revoked",
	srqMessages:    "messages verified on a shared receive queue",
	srqHostile:     "hostile messages on the same shared receive queue",
	srqLimits:      "SRQ limit events",
	datagramsGot:   "datagrams verified, UD",
	unreliableGot:  "messages verified, UC",
	connected:      "connections by the connection manager",
	refused:        "connections refused as requested",
	qps:            "queue pairs created",
	regions:        "memory regions created",
	devicesMemory:  "devices opened in memory",
	devicesXDP:     "devices opened over AF_XDP",
	hostilePackets: "hostile frames to their own queue pairs",
	hostileOther:   "hostile frames to queue pairs of others",
	hostileReplays: "replayed frames",
	hostileMADs:    "hostile MADs",
	hostileAnswers: "answers to the attacker",
	victimsKilled:  "queue pairs that hostile peers put into ERR",
	dropped:        "packets and frames that the device dropped",
	frames:         "frames on the link",
	lost:           "frames lost",
	reordered:      "frames reordered",
	duplicated:     "frames duplicated",
	corrupted:      "frames corrupted",
	plans:          "fault plans",
	measured:       "measurements of memory",
}

// state is what the process uses.
type state struct {
	heap, rss       uint64 // bytes
	fds, goroutines int
}

func (s state) String() string {
	return fmt.Sprintf("heap %.1f MiB, RSS %.1f MiB, %d descriptors, %d goroutines",
		float64(s.heap)/(1<<20), float64(s.rss)/(1<<20), s.fds, s.goroutines)
}

// most returns the larger value of each field.
func (s state) most(o state) state {
	return state{max(s.heap, o.heap), max(s.rss, o.rss), max(s.fds, o.fds),
		max(s.goroutines, o.goroutines)}
}

// Slack of the measurements, beyond which something leaks.
const (
	heapSlack = 4 << 20
	rssSlack  = 24 << 20
	// goroutineSlack are goroutines that are about to end, for example timers of contexts.
	goroutineSlack = 12
	fdSlack        = 2
)

// leak says by how much s exceeds base, or nothing.
func (s state) leak(base state) string {
	if s.heap > base.heap+heapSlack || s.rss > base.rss+rssSlack || s.fds > base.fds+fdSlack ||
		s.goroutines > base.goroutines+goroutineSlack {
		return fmt.Sprintf("%v; after the warm-up: %v", s, base)
	}
	return ""
}

func processState() (s state) {
	debug.FreeOSMemory()
	runtime.GC() // what the first collection made reachable for finalizers
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.heap, s.goroutines = m.HeapAlloc, runtime.NumGoroutine()
	if b, err := os.ReadFile("/proc/self/statm"); err == nil {
		var size, resident uint64
		if _, err := fmt.Sscan(string(b), &size, &resident); err == nil {
			s.rss = resident * uint64(os.Getpagesize())
		}
	}
	if d, err := os.ReadDir("/proc/self/fd"); err == nil {
		s.fds = len(d)
	}
	return s
}

// measure compares the process at each checkpoint with the first checkpoints.
func (w *world) measure() {
	var base state
	every := max(*forFlag/checkpoints, 200*time.Millisecond)
	for i := 1; ; i++ {
		d := min(every, time.Until(w.until))
		if d <= 0 || w.over() {
			return
		}
		time.Sleep(d)
		w.gate.Lock()
		s := w.calm()
		w.gate.Unlock()
		w.n[measured].Add(1)
		if *forFlag > time.Minute {
			fmt.Fprintf(os.Stderr, "soak: %v: %v; %d operations, %d hostile frames\n",
				time.Since(w.began).Round(time.Second), s, w.n[messages].Load(),
				w.n[hostilePackets].Load()+w.n[hostileOther].Load())
		}
		if i <= checkpoints/10 {
			base = base.most(s)
		} else if leak := s.leak(base); leak != "" {
			w.fail("memory, descriptors or goroutines grow: %s", leak)
		}
	}
}

// calm measures when the goroutines that answer hostile requests have ended.
func (w *world) calm() state {
	for end := time.Now().Add(patience); w.targets.busy.Load() > 0; {
		if time.Now().After(end) {
			w.fail("hostile connection requests are still answered after %v", patience)
			break
		}
		time.Sleep(time.Millisecond)
	}
	return processState()
}

// settled returns the state of the process after everything was closed.
func (w *world) settled(before state) state {
	var s state
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if s = processState(); s.fds <= before.fds+fdSlack && s.goroutines <= before.goroutines+2 {
			return s
		}
		if time.Now().After(end) {
			w.fail("after everything was closed: %v; before: %v", s, before)
			return s
		}
	}
}

func (w *world) summary(before, after state) string {
	var b strings.Builder
	d := time.Since(w.began)
	fmt.Fprintf(&b, "soak of %v, seed %d, %d failures, %.0f%% of one core\n",
		d.Round(time.Second), w.seed, w.failed.Load(), 100*cpuTime().Seconds()/d.Seconds())
	for i, name := range statNames {
		fmt.Fprintf(&b, "%14d %s\n", w.n[i].Load(), name)
	}
	fmt.Fprintf(&b, "before: %v\nafter:  %v", before, after)
	return b.String()
}
