package packetfuzz

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/roce"
)

var (
	// ErrNotServing means that the host did not serve an honest peer before the first case.
	ErrNotServing = errors.New("the target does not serve an honest peer")
	// ErrStopped means that the host no longer serves an honest peer.
	ErrStopped = errors.New("the target stopped serving an honest peer")
	// errInterface means that frames cannot be sent.
	errInterface = errors.New("the interface sends no frames: is it still up?")
)

const (
	defaultHopLimit = 64
	defaultSrcPort  = 0xc000
	// flushTime is how long the frames of a case may wait for the interface.
	flushTime = 10 * time.Second
	// resolveTime limits the lookup of the target's MAC address.
	resolveTime = 10 * time.Second
	// redial is the number of cases after a failed connect before the next attempt.
	redial = 64
)

// fuzzer is a run.
type fuzzer struct {
	Config
	tap      *tap
	dev      *roce.Device
	gid      *int
	check    *checker
	to       packets.Target // without the numbers of a connection
	s        *session
	noDial   uint64 // cases until the next attempt to connect
	rep      *Report
	kinds    map[string]*Kind
	began    time.Time
	nextSend time.Time
}

// Run sends the cases. The report is complete even if it returns an error: ErrNotServing or
// ErrStopped with the cause, or the error of ctx.
func Run(ctx context.Context, c Config) (rep *Report, err error) {
	f := &fuzzer{Config: c, kinds: map[string]*Kind{},
		rep: &Report{Target: c.Target.String(), Seed: c.Seed, First: c.First}}
	f.setDefaults()
	info := c.Port.Info()
	f.rep.Interface, f.rep.Datapath = info.Name, info.Datapath
	f.tap = newTap(c.Port)
	f.dev, err = roce.New(f.tap, c.Options...)
	if err != nil {
		return f.rep, err
	}
	defer func() { err = errors.Join(err, f.dev.Close()) }()
	if err := f.resolve(ctx); err != nil {
		return f.rep, err
	}
	f.began = time.Now()
	err = f.run(ctx)
	f.closeSession()
	f.finish()
	return f.rep, err
}

func (f *fuzzer) setDefaults() {
	if f.Rate == 0 {
		f.Rate = DefaultRate
	}
	if f.CheckEvery == 0 {
		f.CheckEvery = DefaultCheckEvery
	}
	if f.Patience == 0 {
		f.Patience = DefaultPatience
	}
}

// resolve finds the addresses of the frames.
func (f *fuzzer) resolve(ctx context.Context) error {
	network, ok := driver.Find[driver.Network](f.Port)
	if !ok {
		return roce.ErrNoNetwork
	}
	ctx, cancel := context.WithTimeout(ctx, resolveTime)
	defer cancel()
	var src netip.Addr
	for _, g := range f.dev.GIDs() {
		if g.Index == int(f.GID) {
			src = g.Addr
		}
	}
	hop, err := network.Resolve(ctx, src, f.Target.WithZone(""))
	if err != nil {
		return fmt.Errorf("%w: %w", roce.ErrUnreachable, err)
	}
	if f.gid, err = f.GID.Choose(f.dev, hop.Src); err != nil {
		return err
	}
	f.to = packets.Target{MTU: defaultMTU, PKey: f.PKey, Address: frame.Address{
		SrcMAC: f.Port.Info().MAC, DstMAC: hop.MAC, VLAN: hop.VLAN,
		Src: bth.GIDFromAddr(hop.Src), Dst: bth.GIDFromAddr(f.Target),
		SrcPort: defaultSrcPort, HopLimit: defaultHopLimit,
	}}
	if a := f.Aim; a != nil {
		f.to.QPN, f.to.PSN, f.to.QKey = a.QPN, a.PSN, a.QKey
		f.to.Addr, f.to.RKey, f.to.Len = a.Addr, a.RKey, a.Len
		if a.MTU != 0 {
			f.to.MTU = a.MTU
		}
	}
	f.check = &checker{dev: f.dev, gid: f.GID, target: f.Target, method: f.Check, port: f.CheckPort,
		patience: f.Patience}
	return nil
}

// defaultMTU is the path MTU of packets to no connection.
const defaultMTU = 1024

func (f *fuzzer) run(ctx context.Context) error {
	if err := f.verify(ctx, ErrNotServing); err != nil {
		return err
	}
	if f.Started != nil {
		f.Started()
	}
	for n := f.First; n-f.First < f.Count; n++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := f.one(ctx, n); err != nil {
			return err
		}
		if f.rep.Cases++; f.Progress != nil {
			f.Progress()
		}
		if f.rep.Cases%f.CheckEvery == 0 && f.rep.Cases < f.Count {
			if err := f.verify(ctx, ErrStopped); err != nil {
				return err
			}
		}
	}
	return f.verify(ctx, ErrStopped)
}

// verify checks that the host serves.
func (f *fuzzer) verify(ctx context.Context, failure error) error {
	aim := f.tap.aim.Swap(0) // do not count the answers to the check
	err := f.check.check(ctx)
	f.tap.aim.Store(aim)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	f.rep.Checks++
	if f.rep.Serving = err == nil; err != nil {
		return fmt.Errorf("%w: %w", failure, err)
	}
	f.rep.LastCheck = f.rep.Cases
	return nil
}

// one sends one case.
func (f *fuzzer) one(ctx context.Context, n uint64) error {
	p := newPlan(f.Seed, n)
	if slices.Contains(f.Skip, p.name()) {
		f.rep.Skipped++
		return nil
	}
	f.connect(ctx)
	to := f.to
	if f.s != nil {
		if p.readFirst && f.s.read {
			f.s.announce()
		}
		to = f.s.target(p)
	}
	count := uint64(0)
	psn := p.make(to, func(b []byte) {
		f.tap.send(b)
		count++
	})
	if err := f.pace(ctx, count); err != nil {
		return err
	}
	if !f.tap.flush(flushTime) {
		return errInterface
	}
	if f.s != nil {
		f.s.sent(p, psn)
	} else if f.Aim != nil {
		f.to.PSN = psn
	}
	k := f.kinds[p.name()]
	if k == nil {
		k = &Kind{Name: p.name()}
		f.kinds[p.name()] = k
	}
	k.Cases++
	k.Frames += count
	return nil
}

// pace waits until count frames may be sent.
func (f *fuzzer) pace(ctx context.Context, count uint64) error {
	const most = 100 * time.Millisecond // that a slow machine may catch up
	now := time.Now()
	if f.nextSend.Before(now.Add(-most)) {
		f.nextSend = now.Add(-most)
	}
	if d := f.nextSend.Sub(now); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	f.nextSend = f.nextSend.Add(time.Duration(count) * time.Second / time.Duration(f.Rate))
	return nil
}

// connect opens a connection if there is none to aim at.
func (f *fuzzer) connect(ctx context.Context) {
	if f.Aim != nil {
		return
	}
	if f.s != nil {
		if !f.s.over() {
			return
		}
		f.closeSession()
	}
	if f.noDial > 0 {
		f.noDial--
		return
	}
	ctx, cancel := context.WithTimeout(ctx, min(dialTime, f.Patience))
	defer cancel()
	addr := rpingAddr(f.Target, f.ViaPort)
	if f.Via == ViaPerftest && f.ViaPort == 0 {
		addr = netip.AddrPortFrom(f.Target, perftest.DefaultPort)
	}
	s, err := openSession(ctx, f.tap, f.dev, f.gid, addr, f.to, f.Via == ViaPerftest)
	if err != nil {
		f.rep.Refused++
		f.noDial = redial
		return
	}
	f.s = s
	f.rep.Sessions++
}

func (f *fuzzer) closeSession() {
	if f.s == nil {
		return
	}
	if f.s.ended() {
		f.rep.Ended++
	}
	_ = f.s.close() // the host may have ended the connection first
	f.s = nil
}

// finish completes the report.
func (f *fuzzer) finish() {
	r, t := f.rep, f.tap
	r.Seconds = time.Since(f.began).Seconds()
	r.Frames, r.Bytes, r.NotSent = t.sent.Load(), t.bytes.Load(), t.notSent.Load()
	r.Kinds, r.Answers = []Kind{}, []Answer{}
	for _, name := range Kinds() {
		if k := f.kinds[name]; k != nil {
			r.Kinds = append(r.Kinds, *k)
		}
	}
	for k, name := range answerNames {
		if n := t.answers[k].Load(); n > 0 {
			r.Answers = append(r.Answers, Answer{name, n})
		}
	}
}
