package indirect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/indirect"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

const (
	linkMTU = 1500 // Ethernet's, which carries path MTU 1024
	window  = 8    // packets in flight
	segment = 16 << 10
	// entries limits the transfers that are not yet released. Each has its own memory on both
	// sides.
	entries = 16
	// patience limits the duration of a transfer. Only a defect makes one take so long.
	patience = 30 * time.Second
	// stampLen is the length of the number at the start and at the end of a transfer's data.
	stampLen = 8
	// delay is the propagation delay of the link in memory, each way.
	delay = 5 * time.Microsecond
)

// trial is one measurement: a number of transfers in a row with one method.
type trial struct {
	*experiment
	*Config
	direct bool // the traditional method
	seed   uint64
}

// outcome is the result of a trial.
type outcome struct {
	total    time.Duration
	stolen   time.Duration // in real time: how long a side did not run, the longer one
	waited   time.Duration // sum over the transfers: from posting until the data could be sent
	counters core.Counters // of the initiator
	served   core.Counters // of the responder
}

// side is one side of a trial: the initiator or the responder.
type side struct {
	dev  *roce.Device
	ep   *indirect.Endpoint
	conn *indirect.Conn
	mr   *roce.MR
	gaps gapMeter
}

// sides are both sides of a trial.
type sides struct {
	*testbed.Testbed
	side    [2]*side
	rand    func() uint64
	arrived atomic.Uint64         // transfers
	corrupt atomic.Pointer[error] // set if a transfer arrived with wrong data
}

// run creates the two sides, makes the transfers, and removes everything.
func (t *trial) run(ctx context.Context) (o outcome, err error) {
	p := &sides{rand: rand.New(rand.NewPCG(t.seed, 2)).Uint64}
	if p.Testbed, err = testbed.New(t.testbed(p.rand)); err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if p.virtual() && t.lfp > 0 {
		p.Link.SetFilter(0, 1, newLosses(t.lfp, t.seed).filter)
		p.Link.SetFilter(1, 0, newLosses(t.lfp, t.seed+1<<32).filter)
	}
	for i := range p.side {
		if p.side[i], err = p.open(t, i); err != nil {
			return o, err
		}
	}
	initiator, responder := p.side[0], p.side[1]
	if err := join(ctx, initiator.conn, responder.conn); err != nil {
		return o, err
	}
	if p.virtual() {
		err = p.simulate(ctx, t, &o)
	} else {
		err = p.measure(ctx, t, &o)
	}
	o.counters, o.served = initiator.conn.Counters(), responder.conn.Counters()
	if corrupt := p.corrupt.Load(); err == nil && corrupt != nil {
		err = *corrupt
	}
	if n := p.arrived.Load(); err == nil && n != uint64(t.Transfers) {
		err = fmt.Errorf("%d of %d transfers arrived", n, t.Transfers)
	}
	return o, err
}

// testbed returns the configuration of the link and the devices. Both methods get the same seed.
func (t *trial) testbed(rand func() uint64) testbed.Config {
	c := testbed.Config{
		MTU: linkMTU, Seed: t.seed, Plan: loopback.Plan{Bandwidth: int64(t.Rate) * 1e6},
		Options: []roce.Option{
			roce.WithProgress(roce.Manual), roce.WithExpert(roce.Expert{MaxWindow: window}),
		},
	}
	if t.Link == kit.Veth {
		c.Veth, c.Mode, c.Plan.Loss = true, t.Mode, t.lfp
		return c
	}
	c.Virtual, c.Plan.Delay = true, delay
	c.Options = append(c.Options, roce.WithExpert(roce.Expert{Rand: rand}))
	return c
}

// virtual reports whether the trial runs in virtual time.
func (p *sides) virtual() bool { return p.Link != nil }

// open creates side i: 0 is the initiator, 1 the responder.
func (p *sides) open(t *trial, i int) (*side, error) {
	s := &side{dev: p.Dev[i]}
	pd, err := s.dev.AllocPD()
	if err != nil {
		return nil, err
	}
	if s.mr, err = pd.AllocMR(entries*t.Size, roce.LocalWrite|roce.RemoteWrite); err != nil {
		return nil, err
	}
	space := indirect.NewSpace(s.mr)
	space.Delivered = func(r *indirect.Request, b []byte) { p.check(t, r, b) }
	c := indirect.Config{
		Host: space, Traditional: t.direct, MaxTransfer: t.Size,
		IndirectBuffer: indirect.DefaultSlots * t.Size, Segment: segment, MaxConns: 1,
		Timeout:  t.Timeout,
		Patience: patience, Entries: entries, RC: roce.ConnectOptions{MTU: t.mtu},
		Faults: indirect.Faults{Seed: t.seed}, Rand: p.rand,
	}
	if i == 1 {
		c.Faults.FailedRegistration = t.frp
	}
	if p.virtual() {
		c.Clock = p.Link.Now
	}
	if s.ep, err = indirect.New(s.dev, pd, c); err != nil {
		return nil, err
	}
	s.conn, err = s.ep.Prepare()
	return s, err
}

// check compares the numbers in the data of an arrived transfer.
func (p *sides) check(t *trial, r *indirect.Request, b []byte) {
	p.arrived.Add(1)
	first, last := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[len(b)-stampLen:])
	if first != last || first%entries != r.DBA/uint64(t.Size) {
		err := fmt.Errorf("the data at address %d is from transfers %d and %d", r.DBA, first, last)
		p.corrupt.Store(&err)
	}
}

// join connects the two halves of a connection.
func join(ctx context.Context, a, b *indirect.Conn) error {
	atA, toA := a.Local()
	atB, toB := b.Local()
	if err := a.Join(ctx, atB, toB); err != nil {
		return err
	}
	return b.Join(ctx, atA, toA)
}

// measure makes the transfers in real time, each side on its own thread and CPU.
func (p *sides) measure(ctx context.Context, t *trial, o *outcome) (err error) {
	initiator, responder := p.side[0], p.side[1]
	var stop atomic.Bool
	served := kit.GoOnCPU(t.CPUs[1], func() error { return responder.serve(&stop) })
	defer func() {
		stop.Store(true)
		err = errors.Join(err, <-served)
		o.stolen = max(initiator.gaps.sum, responder.gaps.sum)
	}()
	if t.pings {
		end, err := startPings(p.Pair, t.PingInterval)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, end()) }()
	}
	start := time.Now()
	return kit.OnCPU(t.CPUs[0], func() error {
		now := func() int64 { return int64(time.Since(start)) }
		initiator.gaps.look()
		return initiator.transfer(t, o, now, initiator.spinner(ctx))
	})
}

// gapMeter sums up the time during which its thread did not run.
type gapMeter struct {
	last time.Time
	sum  time.Duration
}

// gap is longer than a step of a side takes by itself.
const gap = 300 * time.Microsecond

// look is called in each step.
func (m *gapMeter) look() {
	now := time.Now()
	if d := now.Sub(m.last); d > gap && !m.last.IsZero() {
		m.sum += d
	}
	m.last = now
}
