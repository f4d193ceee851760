package rftp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// virtual is two connections in virtual time, on devices that exchange real packets.
type virtual struct {
	*testing.T
	*testbed.Testbed
	conn   [2]*Conn
	failed []error
	cancel context.CancelFunc
	ctx    context.Context
}

func newVirtual(t *testing.T, seed uint64, plan loopback.Plan, cfg Config) *virtual {
	t.Helper()
	rng := func(n uint64) []roce.Option {
		return []roce.Option{roce.WithExpert(
			roce.Expert{Rand: rand.New(rand.NewPCG(seed, n)).Uint64})}
	}
	bed, err := testbed.New(testbed.Config{Virtual: true, Seed: seed, Plan: plan,
		Device: [2][]roce.Option{rng(1), rng(2)}})
	if err != nil {
		t.Fatal(err)
	}
	v := &virtual{T: t, Testbed: bed}
	v.ctx, v.cancel = context.WithCancel(t.Context())
	t.Cleanup(func() {
		v.cancel()
		if err := bed.Close(); err != nil {
			t.Error(err)
		}
	})
	cfg.Clock, cfg.Wait = bed.Link.Now, bed.Sim.Wait
	for i := range v.conn {
		c := cfg
		if v.conn[i], err = Prepare(bed.Dev[i], c); err != nil {
			t.Fatal(err)
		}
		bed.Sim.Add(v.conn[i])
	}
	local := [2]Params{v.conn[0].Local(), v.conn[1].Local()}
	for i, c := range v.conn {
		if err := c.Join(v.ctx, local[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// run adds a process whose error fails the test.
func (v *virtual) run(what string, f func() error) {
	v.Sim.Go(func() {
		if err := f(); err != nil {
			v.failed = append(v.failed, fmt.Errorf("%s: %w", what, err))
		}
	})
}

// wait runs all processes to their end.
func (v *virtual) wait(limit time.Duration) {
	v.Helper()
	if err := v.Sim.Run(limit); err != nil {
		v.Errorf("Run() = %v", err)
	}
	for _, err := range v.failed {
		v.Error(err)
	}
}

// both sends sessions in both directions at the same time, and checks that all blocks arrive.
func (v *virtual) both(sessions, blocks, size int) {
	for i, c := range v.conn {
		v.run(fmt.Sprintf("source %d", i), func() error {
			for n := range sessions {
				if err := send(v.ctx, c, blocks+n, size-n); err != nil {
					return err
				}
			}
			return c.Finish(v.ctx)
		})
		v.run(fmt.Sprintf("sink %d", i), func() error {
			got, err := receive(v.ctx, c)
			if err != nil {
				return err
			}
			for n := range sessions {
				if got[uint32(n+1)] != blocks+n {
					return fmt.Errorf("%d blocks of session %d, want %d", got[uint32(n+1)], n+1,
						blocks+n)
				}
			}
			return nil
		})
	}
}

// TestFaults transfers data in both directions over links that lose, duplicate, reorder and corrupt
// packets, one scenario per seed.
func TestFaults(t *testing.T) {
	seeds := uint64(24)
	if testing.Short() {
		seeds = 4
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 7))
		v := newVirtual(t, seed, loopback.Plan{
			Loss: []float64{0, 0.01, 0.05}[seed%3], Duplicate: 0.01, Reorder: 0.02, Corrupt: 0.005,
			Delay: 5 * time.Microsecond, Jitter: 5 * time.Microsecond,
		}, Config{
			Mode: Mode(r.IntN(3)), BlockSize: 1000 + r.IntN(9000), MinBlockSize: 1000,
			DataQPs: 1 + r.IntN(4), Pool: 10000 * (1 + r.IntN(8)),
			SourcePool: 10000 * (1 + r.IntN(8)),
			Sessions:   1 + r.IntN(4), Connect: roce.ConnectOptions{Timeout: 12},
		})
		v.both(3, 10+r.IntN(20), 1000)
		v.wait(time.Minute)
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestReplay checks that the same seed gives the same packets.
func TestReplay(t *testing.T) {
	var trace [2]uint64
	for i := range trace {
		v := newVirtual(t, 5, loopback.Plan{Loss: 0.02, Delay: 5 * time.Microsecond},
			Config{BlockSize: 10000, Pool: 40000, SourcePool: 40000, DataQPs: 2,
				Connect: roce.ConnectOptions{Timeout: 12}})
		v.both(2, 10, 9000)
		v.wait(time.Minute)
		trace[i] = v.Link.TraceHash()
	}
	if trace[0] != trace[1] {
		t.Errorf("two runs of a seed have the traces %#x and %#x", trace[0], trace[1])
	}
}

// TestDataQPFails breaks a data QP during a transfer, in the middle of blocks: the network drops
// its packets. Their blocks arrive over another QP, each once.
func TestDataQPFails(t *testing.T) {
	for _, mode := range []Mode{Proactive, Paper, OnDemand} {
		t.Run(mode.String(), func(t *testing.T) {
			v := newVirtual(t, 1, loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 1e9},
				Config{
					Mode: mode, BlockSize: 20000, Pool: 100000, SourcePool: 100000, DataQPs: 3,
					Connect: roce.ConnectOptions{Timeout: 8, Retries: 2},
				})
			broken := v.conn[1].data[1].QPN()
			packets := 0
			v.Link.SetFilter(0, 1, func(f []byte) loopback.Action {
				if destQP(f) != broken {
					return loopback.Pass
				}
				if packets++; packets > 20 {
					return loopback.Drop
				}
				return loopback.Pass
			})
			v.both(2, 40, 20000)
			v.wait(time.Minute)
			c := v.conn[0].Counters()
			if c.QPsFailed != 1 || c.BlocksAgain == 0 || c.BlocksSent != 81 {
				t.Errorf("%d data QPs failed, %d blocks sent, %d of them again: want 1, 81, some",
					c.QPsFailed, c.BlocksSent, c.BlocksAgain)
			}
		})
	}
}

// TestAckLost breaks a data QP in the other direction: blocks arrive, and their acknowledgments do
// not. No block arrives twice.
func TestAckLost(t *testing.T) {
	v := newVirtual(t, 1, loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 1e9}, Config{
		BlockSize: 20000, Pool: 100000, SourcePool: 100000, DataQPs: 2,
		Connect: roce.ConnectOptions{Timeout: 8, Retries: 2},
	})
	broken := v.conn[0].data[1].QPN()
	packets := 0
	v.Link.SetFilter(1, 0, func(f []byte) loopback.Action {
		if destQP(f) == broken {
			if packets++; packets > 4 {
				return loopback.Drop
			}
		}
		return loopback.Pass
	})
	v.run("source", func() error {
		if err := send(v.ctx, v.conn[0], 40, 20000); err != nil {
			return err
		}
		return v.conn[0].Finish(v.ctx)
	})
	v.run("sink", func() error {
		got, err := receive(v.ctx, v.conn[1])
		if got[1] != 40 {
			t.Errorf("%d blocks arrived, want 40", got[1])
		}
		return err
	})
	v.wait(time.Minute)
	if c := v.conn[0].Counters(); c.QPsFailed != 1 || c.BlocksSent != 40 {
		t.Errorf("%d data QPs failed, %d blocks sent, want 1 and 40", c.QPsFailed, c.BlocksSent)
	}
}

// destQP returns the destination QP of a frame over IPv4.
func destQP(f []byte) roce.QPN {
	const bth = 14 + 20 + 8
	return roce.QPN(f[bth+5])<<16 | roce.QPN(f[bth+6])<<8 | roce.QPN(f[bth+7])
}

// TestPeerDies takes the link down in the middle of a transfer. Both sides end with an error in
// bounded time.
func TestPeerDies(t *testing.T) {
	for _, c := range []struct {
		name    string
		timeout int // Local ACK Timeout
		want    error
	}{{"retries exhausted", 8, ErrLost}, {"silence", -1, ErrSilent}} {
		t.Run(c.name, func(t *testing.T) {
			v := newVirtual(t, 1, loopback.Plan{Delay: 5 * time.Microsecond, Bandwidth: 1e9},
				Config{
					BlockSize: 20000, Pool: 100000, SourcePool: 100000, DataQPs: 2,
					Silence: time.Second,
					Connect: roce.ConnectOptions{Timeout: c.timeout},
				})
			dead := func([]byte) loopback.Action { return loopback.Drop }
			v.run("killer", func() error {
				err := v.Sim.Sleep(2 * time.Millisecond)
				v.Link.SetFilter(0, 1, dead)
				v.Link.SetFilter(1, 0, dead)
				return err
			})
			v.run("source", func() error {
				if err := send(v.ctx, v.conn[0], 1e6, 20000); !errors.Is(err, c.want) {
					return fmt.Errorf("the source ended with %w, want %w", err, c.want)
				}
				return nil
			})
			v.run("sink", func() error {
				_, err := receive(v.ctx, v.conn[1])
				if !errors.Is(err, ErrLost) && !errors.Is(err, ErrSilent) {
					return fmt.Errorf("the sink ended with %w", err)
				}
				return nil
			})
			start := v.Link.Now()
			v.wait(time.Minute)
			if took := time.Duration(v.Link.Now() - start); took > 3*time.Second {
				t.Errorf("the end took %v", took)
			}
			if v.conn[0].Err() == nil || v.conn[1].Err() == nil {
				t.Error("Err() = nil after the end")
			}
		})
	}
}

// TestRate checks the limit of the rate in virtual time.
func TestRate(t *testing.T) {
	const rate, blocks, size = 10 << 20, 50, 20000
	v := newVirtual(t, 1, loopback.Plan{Delay: 5 * time.Microsecond}, Config{
		BlockSize: size, Pool: 100000, SourcePool: 100000, Rate: rate})
	start := v.Link.Now()
	v.run("source", func() error { return send(v.ctx, v.conn[0], blocks, size) })
	v.run("sink", func() error {
		for range 1 + blocks + 1 {
			r, err := v.conn[1].GetReady(v.ctx)
			if err != nil {
				return err
			}
			if r.Kind == Data {
				if err := v.conn[1].PutFree(r.Block); err != nil {
					return err
				}
			}
		}
		return nil
	})
	v.wait(time.Minute)
	got := float64(blocks*size) / time.Duration(v.Link.Now()-start).Seconds()
	if got > 1.03*rate || got < 0.95*rate {
		t.Errorf("%.0f bytes per second, want %d", got, rate)
	}
}

// TestIsolation checks that a session whose blocks are not consumed leaves blocks to others.
func TestIsolation(t *testing.T) {
	v := newVirtual(t, 1, loopback.Plan{Delay: 5 * time.Microsecond}, Config{
		BlockSize: 10000, Pool: 200000, SourcePool: 200000, Sessions: 2})
	done := false
	var held []*Block
	v.run("slow source", func() error { return send(v.ctx, v.conn[0], 200, 10000) })
	v.run("fast source", func() error {
		if err := v.Sim.Sleep(time.Millisecond); err != nil {
			return err
		}
		err := send(v.ctx, v.conn[0], 100, 10000)
		done = true
		return err
	})
	v.run("sink", func() error {
		for ends := 0; ends < 2; {
			r, err := v.conn[1].GetReady(v.ctx)
			if err != nil {
				return err
			}
			switch {
			case r.Kind == Ended && r.Session == 2:
				ends++
				for _, b := range held { // now the disk of session 1 works again
					if err := v.conn[1].PutFree(b); err != nil {
						return err
					}
				}
				held = nil
			case r.Kind == Ended:
				ends++
			case r.Kind == Data && r.Session == 1 && !done && ends == 0:
				held = append(held, r.Block)
			case r.Kind == Data:
				if err := v.conn[1].PutFree(r.Block); err != nil {
					return err
				}
			}
		}
		return nil
	})
	v.wait(time.Minute)
}
