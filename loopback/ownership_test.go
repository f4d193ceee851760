package loopback

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/driver"
)

// owner makes random calls of all allowed kinds on a Port.
type owner struct {
	port, peer driver.Port
	r          *rand.Rand
	held       []driver.Buf // allocated
	read       []driver.Buf // received
}

func (o *owner) step(t *testing.T) {
	var bufs [20]driver.Buf
	some := bufs[:o.r.IntN(len(bufs)+1)]
	switch o.r.IntN(5) {
	case 0:
		n := o.port.Alloc(some)
		for i := range n {
			o.held = append(o.held,
				driver.Buf{B: fill(some[i].B, o.port.Info().MAC, o.peer.Info().MAC,
					40+o.r.IntN(200), 1), Token: some[i].Token})
		}
	case 1: // any of the buffers, in any order; some too long or too short
		some = o.pick(&o.held, some)
		for i := range some {
			switch o.r.IntN(20) {
			case 0:
				some[i].B = some[i].B[:cap(some[i].B)]
			case 1:
				some[i].B = some[i].B[:3]
			case 2:
				some[i].B[0] |= 1 // to all ports
			}
		}
		if n, err := o.port.Send(some); n > len(some) || err != nil {
			t.Errorf("Send() = %d of %d, %v", n, len(some), err)
		}
	case 2:
		o.port.Free(o.pick(&o.held, some))
	case 3:
		n := o.port.Receive(some)
		o.read = append(o.read, some[:n]...)
	case 4:
		o.port.Release(o.pick(&o.read, some))
	}
}

// pick removes up to len(out) random buffers from a list.
func (o *owner) pick(from *[]driver.Buf, out []driver.Buf) []driver.Buf {
	n := min(len(out), len(*from))
	for i := range n {
		k := o.r.IntN(len(*from))
		out[i] = (*from)[k]
		(*from)[k] = (*from)[len(*from)-1]
		*from = (*from)[:len(*from)-1]
	}
	return out[:n]
}

func (o *owner) finish() {
	o.port.Free(o.held)
	o.port.Release(o.read)
	o.held, o.read = nil, nil
	var bufs [32]driver.Buf
	for n := o.port.Receive(bufs[:]); n > 0; n = o.port.Receive(bufs[:]) {
		o.port.Release(bufs[:n])
	}
}

func randomPlan(r *rand.Rand) (p Plan) {
	maybe := func(f float64) float64 { return f * float64(r.IntN(2)) * r.Float64() }
	p.Loss, p.Duplicate, p.Reorder, p.Corrupt = maybe(0.5), maybe(0.5), maybe(0.5), maybe(0.5)
	p.Delay, p.Jitter = time.Duration(maybe(1e5)), time.Duration(maybe(1e5))
	if r.IntN(4) == 0 {
		p.PauseEvery, p.PauseFor = time.Microsecond*50, time.Microsecond*20
	}
	if r.IntN(4) == 0 {
		p.Bandwidth = 1e9
	}
	return p
}

// Recently released buffers are used first. A Port with few frames in flight uses few of its
// buffers, so that they stay in the caches.
func TestFewBuffersInUse(t *testing.T) {
	l := newLink(t, Config{Virtual: true})
	a, b := l.Port(0), l.Port(1)
	used := map[uint64]bool{}
	var bufs [4]driver.Buf
	for range 1000 {
		n := a.Alloc(bufs[:])
		for i := range n {
			bufs[i].B = fill(bufs[i].B, a.mac, b.mac, 100, 1)
			used[bufs[i].Token] = true
		}
		if sent, err := a.Send(bufs[:n]); sent != len(bufs) || err != nil {
			t.Fatal(sent, err)
		}
		if got := receive(t, b); len(got) != len(bufs) {
			t.Fatalf("received %d frames", len(got))
		}
	}
	if len(used) > 2*len(bufs) {
		t.Errorf("used %d buffers for %d at a time", len(used), len(bufs))
	}
}

// No buffer is lost and none has two holders, for random owners and plans.
func TestBuffersAreReturned(t *testing.T) {
	seeds := uint64(60)
	if raceEnabled {
		seeds = 10
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 0))
		l := newLink(t, Config{Virtual: true, Ports: 2 + r.IntN(2), Seed: seed, Plan: randomPlan(r),
			Queue: 1 + r.IntN(50), TxBufs: 1 + r.IntN(50), MTU: 300, Poison: true})
		var owners []*owner
		for i := range l.Ports() {
			p := driver.Port(l.Port(i))
			if r.IntN(2) == 0 {
				p = InjectWith(p, InjectConfig{Seed: seed, Transmit: randomPlan(r),
					Receive: randomPlan(r), Clock: l.Now})
			}
			owners = append(owners, &owner{port: p, peer: l.Port((i + 1) % l.Ports()), r: r})
		}
		for range 3000 {
			owners[r.IntN(len(owners))].step(t)
			switch r.IntN(50) {
			case 0:
				_ = l.SetPlan(0, 1, randomPlan(r))
			case 1:
				l.Port(1).SetUp(r.IntN(4) != 0)
			}
			l.Advance(time.Duration(r.IntN(3000)))
		}
		for range 200 { // longer than any frame is held
			l.Advance(time.Millisecond)
			for _, o := range owners {
				o.finish()
			}
		}
		for i := range l.Ports() {
			p := l.Port(i)
			p.collect()
			if p.held != 0 || len(p.free) != p.bufs {
				t.Errorf("seed %d: %s: %d buffers held, %d of %d free", seed, p.name, p.held,
					len(p.free), p.bufs)
			}
		}
	}
}

// Two owners in two goroutines, in real time, with faults.
func TestOwnersInParallel(t *testing.T) {
	l := newLink(t, Config{Plan: Plan{Loss: 0.1, Duplicate: 0.1, Reorder: 0.1, Corrupt: 0.1,
		Jitter: 20 * time.Microsecond}})
	done := make(chan *owner)
	for i := range 2 {
		o := &owner{port: l.Port(i), peer: l.Port(1 - i), r: rand.New(rand.NewPCG(uint64(i), 9))}
		go func() {
			for range 30_000 {
				o.step(t)
			}
			done <- o
		}()
	}
	owners := []*owner{<-done, <-done}
	for range 3 {
		time.Sleep(time.Millisecond) // reordered frames become due
		for _, o := range owners {
			o.finish()
		}
	}
	for i := range 2 {
		p := l.Port(i)
		p.collect()
		if p.held != 0 || len(p.free) != p.bufs {
			t.Errorf("%s: %d buffers held, %d of %d free", p.name, p.held, len(p.free), p.bufs)
		}
	}
}
