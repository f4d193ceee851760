package rftp

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// path is a link between two hosts, the same in both directions.
type path struct {
	bits int64 // per second
	rtt  time.Duration
	loss float64
}

// transfer is a simulated transfer from memory to memory.
type transfer struct {
	path
	mode   rftp.Mode
	qps    int
	block  int  // bytes
	pool   int  // bytes
	free   bool // without congestion control
	warmup time.Duration
	time   time.Duration // measured after warmup
}

// arrival says that the sink's program has consumed a block.
type arrival struct {
	at    time.Duration // since the session was opened
	bytes int
}

// outcome is what a transfer did.
type outcome struct {
	arrivals []arrival
	sent     rftp.Counters // of the source
}

// sourceBlocks is how many times larger the pool of the source is than that of the sink. With
// credits on demand, a block waits for its credit before it is sent and for its acknowledgment
// afterwards.
const sourceBlocks = 2

const (
	pathMTU roce.MTU = 4096
	// wireFrame is the length of a full frame: Ethernet, IPv4, UDP, BTH, payload and ICRC.
	wireFrame = 14 + 20 + 8 + 12 + 4096 + 4
)

// goodput returns the largest possible payload of WRITEs in bits per second.
func (p *path) goodput() float64 { return float64(p.bits) * float64(pathMTU) / wireFrame }

// frames returns how many frames may be in flight in one direction: twice what the path holds, or
// without congestion control that and the whole pool.
func (t *transfer) frames() int {
	least := 2 * float64(t.bits) / 8 * t.rtt.Seconds()
	if t.free {
		least = least/2 + float64(t.pool)
	}
	n := 1024
	for float64(n)*wireFrame < least {
		n *= 2
	}
	return n
}

// bed creates the two devices of a path.
func (t *transfer) bed(seed uint64) (*testbed.Testbed, error) {
	device := func(n uint64) []roce.Option {
		e := roce.Expert{Rand: rand.New(rand.NewPCG(seed, n)).Uint64}
		if !t.free {
			return []roce.Option{roce.WithExpert(e)}
		}
		e.MaxWindow = t.frames()
		return []roce.Option{roce.WithExpert(e), roce.WithCongestionControl(roce.CongestionNone)}
	}
	return testbed.New(testbed.Config{
		Virtual: true, Seed: seed,
		Plan:   loopback.Plan{Bandwidth: t.bits, Delay: t.rtt / 2, Loss: t.loss},
		Link:   loopback.Config{NoTrace: true, Queue: t.frames()},
		Device: [2][]roce.Option{device(1), device(2)},
	})
}

// run simulates a transfer. It returns an error if an operation fails, or when ctx ends.
func (t *transfer) run(ctx context.Context, seed uint64) (o outcome, err error) {
	bed, err := t.bed(seed)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	conn, err := t.connect(ctx, bed)
	if err != nil {
		return o, err
	}
	start := bed.Link.Now()
	end := start + int64(t.warmup+t.time)
	over := func() bool { return bed.Link.Now() >= end || ctx.Err() != nil }
	limit, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed [2]error
	bed.Sim.Go(func() { failed[0] = send(limit, conn[0], over) })
	bed.Sim.Go(func() {
		failed[1] = consume(limit, conn[1], func(bytes int) {
			at := time.Duration(bed.Link.Now() - start)
			o.arrivals = append(o.arrivals, arrival{at, bytes})
		})
	})
	bed.Sim.Go(func() {
		for !over() {
			if err := bed.Sim.Sleep(min(time.Duration(end-bed.Link.Now()),
				time.Second/10)); err != nil {
				break
			}
		}
		cancel()
	})
	err = bed.Sim.Run(t.warmup + t.time + time.Minute)
	for _, e := range failed {
		if e != nil && !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	o.sent = conn[0].Counters()
	return o, err
}

// connect creates and connects both sides.
func (t *transfer) connect(ctx context.Context, bed *testbed.Testbed) (conn [2]*rftp.Conn,
	err error) {
	for i, dev := range bed.Dev {
		conn[i], err = rftp.Prepare(dev, rftp.Config{
			Mode: t.mode, DataQPs: t.qps, BlockSize: t.block, MinBlockSize: t.block, Pool: t.pool,
			SourcePool: sourceBlocks * t.pool, Hold: i == 0, Sessions: 1, Clock: bed.Link.Now,
			Wait:    bed.Sim.Wait,
			Connect: roce.ConnectOptions{MTU: pathMTU},
		})
		if err != nil {
			return conn, err
		}
		bed.Sim.Add(conn[i])
	}
	local := [2]rftp.Params{conn[0].Local(), conn[1].Local()}
	for i := range conn {
		if err := conn[i].Join(ctx, local[1-i]); err != nil {
			return conn, err
		}
	}
	return conn, nil
}

// send sends blocks until over returns true.
func send(ctx context.Context, c *rftp.Conn, over func() bool) error {
	s, err := c.Open(ctx, nil)
	if err != nil {
		return err
	}
	for !over() {
		b, err := s.GetFree(ctx)
		if err != nil {
			return err
		}
		b.Len = len(b.Data)
		if err := s.Send(b); err != nil {
			return err
		}
	}
	return nil
}

// consume returns blocks at once and reports their length.
func consume(ctx context.Context, c *rftp.Conn, got func(bytes int)) error {
	for {
		r, err := c.GetReady(ctx)
		if err != nil {
			return err
		}
		if r.Kind != rftp.Data {
			continue
		}
		got(r.Block.Len)
		if err := c.PutFree(r.Block); err != nil {
			return err
		}
	}
}

// rate returns the payload consumed per second after warmup, in bits.
func (t *transfer) rate(o *outcome) float64 {
	var first, last time.Duration
	bytes := 0
	for _, a := range o.arrivals {
		if a.at <= t.warmup {
			first = a.at
			continue
		}
		bytes += a.bytes
		last = a.at
	}
	if bytes == 0 {
		return 0
	}
	return float64(bytes) * 8 / (last - first).Seconds()
}

// ramp returns the time from opening the session until the transfer has reached nine tenths of the
// path's goodput, averaged over two round trips from then on; 0 if it never does.
func (t *transfer) ramp(o *outcome) time.Duration {
	const least = 0.9
	span := 2 * t.rtt
	want := least * t.goodput() / 8 * span.Seconds()
	bytes, next := 0, 0
	for i := range o.arrivals {
		for ; next < len(o.arrivals) && o.arrivals[next].at <= o.arrivals[i].at+span; next++ {
			bytes += o.arrivals[next].bytes
		}
		bytes -= o.arrivals[i].bytes // it has arrived before the span
		if float64(bytes) >= want {
			return o.arrivals[i].at
		}
	}
	return 0
}
