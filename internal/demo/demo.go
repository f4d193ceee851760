package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

const (
	maxMessage = 64 << 10
	depth      = 64                 // messages in flight, and receives on each of B's QPs
	guard      = 64                 // bytes after each message that must not change
	stride     = maxMessage + guard // distance of two messages in memory
	area       = depth * stride

	// spin is how long B's thread polls before it sleeps. The next packet usually comes soon.
	spin = 200 * time.Microsecond
	// maxUnreliable is the number of packets that an unreliable transport may have in flight. It is
	// less than the size of B's receive ring, since there is no flow control.
	maxUnreliable = 1024

	ethernetMTU = 1500
	headroom    = 80 // more than RoCEv2 adds to the path MTU
)

// The transports are the indexes of the endpoints' QPs.
const (
	rc = iota
	uc
	ud
	transports
)

// Offsets in the memory region of an endpoint: messages to send, messages that the peer writes or
// that are read, and the receive buffers of each transport.
const (
	outArea    = 0
	inArea     = area
	recvArea   = 2 * area
	memorySize = recvArea + transports*area
)

// Config describes a demo.
type Config struct {
	MTU  roce.MTU
	Mode xdp.Mode
	Loss float64 // fraction of the packets to drop
	Seed uint64  // of the data and the losses
	Bulk int64   // bytes of the bulk WRITE, rounded up to whole MiB

	Memory bool // use a memory link even if AF_XDP is available
	Strict bool // fail if AF_XDP is not available
	UDP    bool // use UDP sockets even if AF_XDP is available

	Options []roce.Option // of both devices
}

// deviceMTU returns the MTU of interfaces that carry the path MTU.
func (c *Config) deviceMTU() int { return max(ethernetMTU, int(c.MTU)+headroom) }

// Demo is two connected devices.
type Demo struct {
	Config
	bed  *testbed.Testbed
	a, b *endpoint.Endpoint
	ah   *roce.AH // of B, for A's UD QP
}

// New opens the devices on a veth pair over AF_XDP, or on UDP sockets or a memory link if c asks
// for it. If AF_XDP is not available, it uses UDP sockets too, or if they are not available a
// memory link, unless c.Strict is set, and note tells the user why.
func New(ctx context.Context, c Config) (d *Demo, note string, err error) {
	if !c.Memory && !c.UDP {
		d, err := open(ctx, c, testbed.Config{Veth: true})
		if err == nil || c.Strict || ctx.Err() != nil {
			return d, "", err
		}
		note = noAFXDP(err)
	}
	if !c.Memory {
		d, err = open(ctx, c, testbed.Config{UDP: true})
		if err == nil || c.UDP || ctx.Err() != nil {
			return d, note, err
		}
		note = fmt.Sprintf("neither AF_XDP nor UDP sockets are available (%v): using an in-memory link "+
			"instead", err)
	}
	d, err = open(ctx, c, testbed.Config{})
	return d, note, err
}

func noAFXDP(err error) string {
	if os.Geteuid() != 0 &&
		(errors.Is(err, veth.ErrPermission) || errors.Is(err, xdp.ErrPermission)) {
		return "AF_XDP needs root: using UDP sockets instead (sudo gorxe demo uses AF_XDP)"
	}
	return fmt.Sprintf("AF_XDP is not available (%v): using UDP sockets instead", err)
}

func open(ctx context.Context, c Config, bed testbed.Config) (*Demo, error) {
	b := roce.Expert{Spin: spin}
	if runtime.GOMAXPROCS(0) == 1 {
		b.Spin = roce.NoSpin // A polls on the only core
	}
	d := &Demo{Config: c}
	var err error
	bed.Mode, bed.MTU, bed.Seed = c.Mode, c.deviceMTU(), c.Seed
	bed.Plan, bed.Options = loopback.Plan{Loss: c.Loss}, c.Options
	bed.Device = [2][]roce.Option{{roce.WithProgress(roce.Manual)}, {roce.WithExpert(b)}}
	d.bed, err = testbed.New(bed)
	if err == nil {
		err = d.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close closes the devices, which destroys all objects on them.
func (d *Demo) Close() error {
	if d.bed == nil {
		return nil
	}
	return d.bed.Close()
}

// connect creates the endpoints and connects their queue pairs.
func (d *Demo) connect(ctx context.Context) (err error) {
	for i, e := range []**endpoint.Endpoint{&d.a, &d.b} {
		if *e, err = newEndpoint(d.bed.Dev[i]); err != nil {
			return err
		}
	}
	if err := endpoint.Connect(ctx, d.a, d.b, roce.ConnectOptions{MTU: d.MTU}); err != nil {
		return err
	}
	d.ah, err = d.a.Dev.CreateAH(ctx, roce.AHAttr{Remote: d.b.QPs[ud].Local().GID})
	return err
}

func newEndpoint(dev *roce.Device) (*endpoint.Endpoint, error) {
	const completions = 2 * transports * depth
	e, err := endpoint.New(dev, endpoint.Config{
		QP:  roce.QPConfig{SendDepth: depth + 1, RecvDepth: depth},
		QPs: -1, SendCQ: completions, RecvCQ: completions, Memory: memorySize,
	})
	for _, t := range [transports]roce.QPType{rc: roce.RC, uc: roce.UC, ud: roce.UD} {
		if err == nil {
			_, err = e.AddQPOfType(t)
		}
	}
	return e, err
}

// retransmits returns the number of packets that both devices have retransmitted.
func (d *Demo) retransmits() uint64 {
	return d.a.Dev.Counters().Retransmits + d.b.Dev.Counters().Retransmits
}

// Run runs all operations. It shows progress on diag if that is a terminal. The report is valid but
// incomplete if there is an error.
func (d *Demo) Run(ctx context.Context, diag io.Writer) (*Report, error) {
	r := &Report{Datapath: d.a.Dev.Info().Datapath, PathMTU: d.MTU, Loss: d.Loss, Ops: []Op{}}
	err := d.run(ctx, r, diag)
	r.Verified = err == nil
	return r, err
}

func (d *Demo) run(ctx context.Context, r *Report, diag io.Writer) error {
	for t := range transports {
		for slot := range depth {
			if err := d.postRecv(t, slot, stride); err != nil {
				return err
			}
		}
	}
	if err := d.runOperations(ctx, r, diag); err != nil {
		return err
	}
	if err := d.checkInvalidated(ctx); err != nil {
		return err
	}
	total := (d.Bulk + bulkMessage - 1) / bulkMessage * bulkMessage
	bar := cli.NewBar(diag, total, "bulk WRITE", true)
	defer bar.Clear()
	op, err := d.bulk(ctx, total, bar.Add)
	if err != nil {
		return err
	}
	r.Ops = append(r.Ops, *op)
	return nil
}

func (d *Demo) runOperations(ctx context.Context, r *Report, diag io.Writer) error {
	bar := cli.NewBar(diag, int64(len(operations)), "", false)
	defer bar.Clear()
	for i := range operations {
		bar.Describe(operations[i].name)
		if err := d.runOperation(ctx, &operations[i], r); err != nil {
			return err
		}
		bar.Add(1)
	}
	return nil
}

// runOperation checks an operation with the sizes around packet boundaries, and measures it with
// the sizes of the report.
func (d *Demo) runOperation(ctx context.Context, o *operation, r *Report) error {
	for _, size := range o.edges(d.MTU) {
		d.poisonReceives(o)
		if err := o.run(newTrial(ctx, d, o, size), 2, 2); err != nil {
			return err
		}
	}
	for _, size := range o.sizes(&d.Config) {
		d.poisonReceives(o)
		before := d.retransmits()
		t := newTrial(ctx, d, o, size)
		if err := o.run(t, d.fewer(singles), 1); err != nil {
			return err
		}
		if err := o.run(t, d.fewer(o.batch(size)), o.depth(size, d.MTU)); err != nil {
			return err
		}
		r.Lost += t.lost
		op := newOp(o.name, size, t.batched, t.batchTime, t.lat)
		op.Count, op.Retransmits = t.arrived, d.retransmits()-before
		r.Ops = append(r.Ops, op)
	}
	return nil
}
