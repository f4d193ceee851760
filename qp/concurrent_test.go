package qp

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
)

// runOwner runs both engines of a world in real time on one goroutine, the owner's, until stop.
func (w *world) runOwner(stop *atomic.Bool, owner func()) {
	start := time.Now()
	for !stop.Load() {
		w.now = Time(time.Since(start))
		busy := false
		for i, e := range w.ends {
			for w.pump(i) {
				busy = true
			}
			e.HandleTimeout(w.now)
		}
		for len(w.wire) > 0 && w.wire[0].at <= w.now {
			f := w.wire[0]
			w.wire = w.wire[1:]
			w.ends[f.to].HandlePacket(w.now, w.parse(1-f.to, f.data))
			busy = true
		}
		owner()
		if !busy {
			runtime.Gosched()
		}
	}
}

// Several QPs, each with a goroutine that posts sends and receives and one that polls, run
// concurrently with the owner. With -race the test shows that the rings, the doorbell list and the
// CQ need no lock.
func TestPostAndPollFromOtherGoroutines(t *testing.T) {
	const qps, each = 4, 400
	w := newWorld(t, 1)
	w.delay = 0
	var stop atomic.Bool
	var wg sync.WaitGroup
	var bells atomic.Uint64
	for _, e := range w.ends {
		e.SetDoorbellHook(func() { bells.Add(1) })
	}
	for i := range qps {
		var cqs [2]*CQ
		end := 0
		a, b := w.pair(RC, func(ia *InitAttr, _ *Attr) {
			cqs[end%2], _ = NewCQ(64)
			ia.SendCQ, ia.RecvCQ = cqs[end%2], cqs[end%2]
			ia.SQDepth, ia.RQDepth = 16, 16
			end++
		})
		src, dst := w.ends[0].sge(i*4096, 700), w.ends[1].sge(i*4096, 700)
		wg.Add(2)
		go func() { // posts, and polls its own completions
			defer wg.Done()
			var wcs [16]WC
			for posted, done := 0, 0; done < each; {
				if posted < each {
					n, _ := a.PostSend([]SendWR{{ID: uint64(posted), Op: OpSend, Flags: Signaled,
						SGEs: []SGE{src}}})
					posted += n
				}
				for _, wc := range wcs[:cqs[0].Poll(wcs[:])] {
					if wc.Status != Success || wc.ID != uint64(done) {
						t.Errorf("QP %d: send %s, want %d", i, wc.short(), done)
					}
					done++
				}
				runtime.Gosched()
			}
		}()
		go func() {
			defer wg.Done()
			var wcs [16]WC
			for posted, done := 0, 0; done < each; {
				if posted < each {
					n, _ := b.PostRecv([]RecvWR{{ID: uint64(posted), SGEs: []SGE{dst}}})
					posted += n
				}
				cqs[1].Arm(false)
				for _, wc := range wcs[:cqs[1].Poll(wcs[:])] {
					if wc.Status != Success || wc.ID != uint64(done) {
						t.Errorf("QP %d: receive %s, want %d", i, wc.short(), done)
					}
					done++
				}
				runtime.Gosched()
			}
		}()
	}
	go func() { wg.Wait(); stop.Store(true) }()
	w.runOwner(&stop, func() {})
	if bells.Load() == 0 {
		t.Error("no doorbell rang")
	}
}

// Posts race with the QP's change to ERR: every accepted request completes exactly once, as a
// success or flushed, and nothing stays in the queues (IBA 10.3.1.7).
func TestPostWhileBreaking(t *testing.T) {
	for round := range 20 {
		w := newWorld(t, uint64(round))
		w.delay = 0
		a, _ := w.pair(RC)
		e := w.ends[0]
		sq, rq := a, a
		va, key := w.ends[1].remote(0)
		var stop, posted atomic.Bool
		var sends, recvs int
		var wg sync.WaitGroup
		wg.Add(2)
		go func() {
			defer wg.Done()
			for range 100 {
				n, _ := sq.PostSend([]SendWR{{ID: 1, Op: OpWrite, Flags: Signaled,
					SGEs: []SGE{e.sge(0, 8)}, RemoteAddr: va, RKey: key}})
				sends += n
				runtime.Gosched()
			}
		}()
		go func() {
			defer wg.Done()
			for range 100 {
				n, _ := rq.PostRecv([]RecvWR{{ID: 2}})
				recvs += n
				runtime.Gosched()
			}
		}()
		go func() { wg.Wait(); posted.Store(true) }()
		turns, after := 0, 0
		w.runOwner(&stop, func() {
			w.collect()
			if turns++; turns == 3*round+1 {
				must(t, a.Modify(w.now, &Attr{State: Err}, AttrState))
			}
			if posted.Load() && turns > 3*round+1 {
				after++
			}
			stop.Store(after > 3)
		})
		w.collect()
		got := [3]int{}
		for _, wc := range e.wcs {
			got[wc.ID]++
			if wc.Status != WRFlushErr && (wc.ID == 2 || wc.Status != Success) {
				t.Fatalf("completion %s", wc.short())
			}
		}
		if got[1] != sends || got[2] != recvs || a.SQLen() != 0 || a.RQLen() != 0 {
			t.Fatalf("round %d: %d of %d sends and %d of %d receives completed; left %d and %d",
				round, got[1], sends, got[2], recvs, a.SQLen(), a.RQLen())
		}
	}
}

// Many goroutines ring the doorbells of many QPs: each QP is served, in the order of the doorbells,
// and no doorbell is lost while HandleDoorbells runs.
func TestNoDoorbellIsLost(t *testing.T) {
	w := newWorld(t, 1)
	e := w.ends[0]
	var qs []*QP
	for range 50 {
		q, _ := w.pair(UD)
		qs = append(qs, q)
	}
	w.pump(0) // serve the QPs for the first time
	path := w.path(0)
	ah := NewAH(&path, nil)
	for i := len(qs) - 1; i >= 0; i-- {
		w.post(qs[i], SendWR{Op: OpSend, AH: ah, RemoteQPN: bth.QPN(i)})
	}
	e.HandleDoorbells(0)
	var buf [256]byte
	for i := len(qs) - 1; i >= 0; i-- {
		tx := e.PollTransmit(0, buf[:])
		if got := bth.BTH(buf[tx.NetLen:tx.Len]).DestQP(); got != bth.QPN(i) {
			t.Fatalf("served %d, want %d, the order of the doorbells", got, i)
		}
	}
	const each = 1000
	var wg sync.WaitGroup
	for _, q := range qs[:4] {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; n < each; {
				m, _ := q.PostSend([]SendWR{{Op: OpSend, AH: ah}})
				n += m
				if m == 0 {
					runtime.Gosched()
				}
			}
		}()
	}
	var done atomic.Bool
	go func() { wg.Wait(); done.Store(true) }()
	sent := 0
	for sent < 4*each {
		over := done.Load()
		e.HandleDoorbells(0)
		for e.PollTransmit(0, buf[:]) != nil {
			sent++
		}
		if over && sent < 4*each && !e.DoorbellPending() {
			t.Fatalf("%d of %d sent, and no doorbell is pending", sent, 4*each)
		}
		runtime.Gosched()
	}
}
