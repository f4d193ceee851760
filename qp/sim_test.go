package qp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/mr"
)

// TestRandomTraffic is a small simulation of the engine alone: an RC pair, random operations in
// both directions, and a link that loses, duplicates and reorders packets. Everything completes
// once and in order, memory has the right contents, and atomics count exactly. The simulation of
// the whole stack is in fuzz/sim.
func TestRandomTraffic(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 50
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomTraffic(t, uint64(seed), false, false, false) })
	}
}

// TestSelectiveRandomTraffic is TestRandomTraffic with selective repeat.
func TestSelectiveRandomTraffic(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 50
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { randomTraffic(t, uint64(seed), true, false, false) })
	}
}

// TestClassRandomTraffic is TestRandomTraffic with classes and rates that change at any time.
func TestClassRandomTraffic(t *testing.T) {
	n := 100
	if testing.Short() {
		n = 20
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			randomTraffic(t, uint64(seed), seed%2 == 0, true, false)
		})
	}
}

// TestKeptACKRandomTraffic is TestRandomTraffic with ACKs that wait for replies.
func TestKeptACKRandomTraffic(t *testing.T) {
	n := 200
	if testing.Short() {
		n = 40
	}
	for seed := range n {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			randomTraffic(t, uint64(seed), seed%2 == 0, seed%4 > 1, true)
		})
	}
}

// changeKeeping turns KeepAcks on or off, or makes the engine believe that the program has answered
// many messages.
func (e *Engine) changeKeeping(r *rand.Rand, q *QP) {
	if r.IntN(3) == 0 {
		e.KeepAcks(r.IntN(4) > 0)
	}
	q.rec.replies = q.rec.replies&awaited | maxReplies
}

// checkKept checks that no ACK is kept too long.
func (e *Engine) checkKept(now Time) error {
	var before Time
	for q := e.lists[inAckKept].head; q != nil; q = q.listNext {
		switch {
		case !q.ackOwed || q.ackAsked == notAsked || q.ackNow:
			return fmt.Errorf("a QP is on the list of kept ACKs: %+v", q.ackState)
		case q.ackDue() < now:
			return fmt.Errorf("an ACK is kept %d ns too long", now-q.ackDue())
		case q.ackSince < before-ackSoon: // it may have been in the run queue for ackSoon
			return fmt.Errorf("an ACK is kept since %d, after one since %d", q.ackSince, before)
		}
		before = max(before, q.ackSince)
	}
	return nil
}

// randomClasses returns a configuration of the classes with moderate rates.
func randomClasses(r *rand.Rand) (c [NumClasses]ClassConfig) {
	for i := range c {
		c[i].Order = Order(r.IntN(int(numOrders)))
		c[i].Preempt = []int{0, PreemptAtEnd, 1 + r.IntN(20_000)}[r.IntN(3)]
		if r.IntN(3) == 0 {
			c[i].Rate, c[i].Burst = 1e6+r.Uint64N(1e9), r.IntN(1<<16)
		}
	}
	return c
}

// changeClass gives the QP another class and perhaps a rate.
func changeClass(t testing.TB, now Time, r *rand.Rand, q *QP) {
	a := Attr{Class: uint8(r.IntN(NumClasses))}
	if r.IntN(3) == 0 {
		a.Rate, a.Burst = 1e6+r.Uint64N(1e8), r.IntN(1<<14)
	}
	must(t, q.Modify(now, &a, AttrClass|AttrRate))
}

func randomTraffic(t *testing.T, seed uint64, selective, classes, keep bool) {
	r := rand.New(rand.NewPCG(seed, 99))
	w := newWorld(t, seed, func(c *Config) {
		if classes {
			c.Classes = randomClasses(r)
		}
	})
	f := r.Float64() * 0.2
	w.faults = faults{loss: f * r.Float64(), dup: f * r.Float64(), reorder: f * r.Float64(),
		late: 20000}
	mtus := []int{256, 512, 1024, 2048, 4096}
	mtu := mtus[r.IntN(len(mtus))]
	a, b := w.pair(RC, func(_ *InitAttr, at *Attr) {
		at.PathMTU = bth.MTU(mtu)
		at.MaxRdAtomic, at.MaxDestRdAtomic = 4, 4
		at.Timeout = 12
		at.Selective = selective
	})
	qs := [2]*QP{a, b}
	// Each end's memory: 0 to 256K is written by the peer, 256K to 512K is the source, READ results
	// start at 512K, and the last 4096 bytes hold counters for atomics and words for ATOMIC WRITEs.
	const region = 256 << 10
	var want [2][]byte
	for i := range want {
		e := w.ends[i]
		for j := range e.mem[region : 2*region] {
			e.mem[region+j] = byte(r.Uint32())
		}
		want[i] = make([]byte, region)
	}
	type op struct {
		wr    SendWR
		check func()
	}
	var adds [2]uint64
	const counter = 1<<20 - 4096
	const words = counter + 512
	var last [2][16]uint64 // the last value of an ATOMIC WRITE, by word
	var windows [2]*mr.Window
	var bound [2]bth.RKey
	for i, e := range w.ends {
		var err error
		windows[i], err = e.mrs.AllocWindow(e.pd, mr.Type2)
		must(t, err)
	}
	makeOp := func(i, id int) op {
		e, peer := w.ends[i], w.ends[1-i]
		size := r.IntN(3 * mtu)
		if r.IntN(4) == 0 {
			size = r.IntN(40000)
		}
		src := r.IntN(region-size) + region
		dst := r.IntN(region - size)
		wr := SendWR{ID: uint64(id), Flags: Signaled, SGEs: []SGE{e.sge(src, size)}}
		switch r.IntN(7) {
		case 4:
			wr.Op, wr.SGEs, wr.Placement, wr.Length = OpFlush, nil, PlaceGlobal, uint32(size)
			wr.RemoteAddr, wr.RKey = peer.remote(dst)
			return op{wr: wr}
		case 5:
			v, at := r.Uint64(), r.IntN(16)
			wr.Op, wr.SGEs, wr.Inline = OpAtomicWrite, nil, binary.NativeEndian.AppendUint64(nil, v)
			wr.RemoteAddr, wr.RKey = peer.remote(words + 8*at)
			last[1-i][at] = v
			return op{wr: wr}
		// a window of type 2, bound and invalidated in turn: each would fail out of order or twice
		case 6:
			if wr.SGEs = nil; bound[i] != 0 {
				wr.Op, wr.InvKey, bound[i] = OpLocalInv, bound[i], 0
				return op{wr: wr}
			}
			key, err := e.mrs.NextRKey(windows[i])
			if err != nil { // the maximum number has not run yet
				wr.Op = OpSend
				return op{wr: wr}
			}
			wr.Op, wr.RKey, wr.Access, wr.SGEs = OpBindMW, bth.RKey(key), mr.RemoteRead, []SGE{e.sge(src, size+1)}
			bound[i] = bth.RKey(key)
			return op{wr: wr}
		case 0:
			wr.Op = OpWrite
			wr.RemoteAddr, wr.RKey = peer.remote(dst)
			copy(want[1-i][dst:], e.mem[src:src+size])
			return op{wr: wr}
		case 1:
			wr.Op = OpSend
			return op{wr: wr}
		case 2:
			wr.Op = OpRead
			at := 2*region + id%16*8192
			size = min(size, 8192)
			wr.SGEs = []SGE{e.sge(at, size)}
			from := r.IntN(region-size) + region
			wr.RemoteAddr, wr.RKey = peer.remote(from)
			return op{wr, func() {
				if !bytes.Equal(e.mem[at:at+size], peer.mem[from:from+size]) {
					t.Errorf("READ %d of %d bytes returned wrong data", id, size)
				}
			}}
		}
		wr.Op = OpFetchAdd
		at := counter + 8 + id%16*8
		wr.SGEs = []SGE{e.sge(at, 8)}
		wr.RemoteAddr, wr.RKey = peer.remote(counter)
		wr.SwapAdd = 1
		before := adds[i]
		adds[i]++
		return op{wr, func() {
			if got := binary.NativeEndian.Uint64(e.mem[at:]); got != before {
				t.Errorf("FETCH_ADD %d returned %d, want %d", id, got, before)
			}
		}}
	}
	const total = 60
	for i := range qs {
		for range 120 {
			w.recv(qs[i], RecvWR{SGEs: []SGE{w.ends[i].sge(600<<10, 40000)}})
		}
	}
	for i, q := range qs {
		var ops []op
		for id := range total {
			o := makeOp(i, id)
			ops = append(ops, o)
			w.post(q, o.wr)
		}
		done := 0
		e := w.ends[i]
		w.run(600*second, func() bool {
			if classes && r.IntN(50) == 0 {
				changeClass(t, w.now, r, qs[r.IntN(2)])
			}
			if keep && r.IntN(10) == 0 {
				j := r.IntN(2)
				w.ends[j].changeKeeping(r, qs[j])
			}
			for _, q := range qs {
				if err := q.invariants(); err != nil {
					t.Fatal(err)
				}
			}
			for _, e := range w.ends {
				must(t, e.checkKept(w.now))
			}
			for len(e.wcs) > 0 {
				wc := e.wcs[0]
				e.wcs = e.wcs[1:]
				if wc.Opcode == WCRecv {
					continue
				}
				if wc.Status != Success || wc.ID != uint64(done) {
					t.Fatalf("completion %s, want %d", wc.short(), done)
				}
				if c := ops[done].check; c != nil && done > total-16 {
					c()
				}
				done++
			}
			return done == total
		})
	}
	for i, e := range w.ends {
		if !bytes.Equal(e.mem[:region], want[i]) {
			t.Errorf("end %d: written memory differs", i)
		}
		if got := binary.NativeEndian.Uint64(e.mem[counter:]); got != adds[1-i] {
			t.Errorf("counter is %d, want %d", got, adds[1-i])
		}
		for at, want := range last[i] {
			if got := binary.NativeEndian.Uint64(e.mem[words+8*at:]); got != want {
				t.Errorf("end %d: word %d is %#x, want %#x: an ATOMIC WRITE was lost or executed twice", i, at, got, want)
			}
		}
	}
}
