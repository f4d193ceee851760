package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// Sizes of what a demo uses.
const (
	maxMessage = 64 << 10
	depth      = 64                 // messages outstanding, and receives posted on each of B's QPs
	guard      = 64                 // bytes behind each message that must stay as they are
	stride     = maxMessage + guard // from one message's place to the next one's
	area       = depth * stride
	demoQKey   = roce.QKey(0x67_6f_72) // of the UD QPs; any value serves

	// B's thread spins that long before it sleeps: in a demo the next packet is never far.
	spin = 200 * time.Microsecond
	// What an unreliable transport may have under way: less than B's receive ring holds, since
	// nothing slows it down.
	maxUnreliable = 1024 // packets

	ethernetMTU = 1500
	headroom    = 80 // bytes that RoCEv2 adds to the path MTU at most
)

// settings are what the user chose.
type settings struct {
	mtu    roce.MTU
	mode   xdp.Mode
	loss   float64
	seed   uint64
	memory bool // in memory, even if AF_XDP could be had
	strict bool // AF_XDP or nothing: the user chose the mode
}

// plan is what happens to packets on their way.
func (s *settings) plan() loopback.Plan { return loopback.Plan{Loss: s.loss} }

// deviceMTU is the interface MTU that the path MTU needs, Ethernet's own if that is enough.
func (s *settings) deviceMTU() int { return max(ethernetMTU, int(s.mtu)+headroom) }

// node is one device with what the demo needs on it.
type node struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ // of all send queues
	rcq *roce.CQ // of all receive queues
	mr  *roce.MR // out area, in area, and one receive area for each QP
	qps [transports]*roce.QP
}

// The transports, and the places of a node's memory.
const (
	rc = iota
	uc
	ud
	transports

	outArea  = 0
	inArea   = area
	recvArea = 2 * area
	nodeSize = recvArea + transports*area
)

// rig is two nodes that reach each other.
type rig struct {
	settings
	a, b    *node
	ah      *roce.AH
	cleanup []func() error
}

// newRig builds the rig on AF_XDP, or in memory if that is asked for or nothing else is to be had: note says why.
func newRig(ctx context.Context, s settings) (r *rig, note string, err error) {
	if !s.memory {
		r, err := s.build(ctx, (*rig).onVeth)
		if err == nil || s.strict || ctx.Err() != nil {
			return r, "", err
		}
		note = why(err)
	}
	r, err = s.build(ctx, (*rig).inMemory)
	return r, note, err
}

// why says in few words what kept AF_XDP from us.
func why(err error) string {
	if os.Geteuid() != 0 && (errors.Is(err, veth.ErrPermission) || errors.Is(err, xdp.ErrPermission)) {
		return "not root, so no AF_XDP: running on the in-memory link instead (sudo gorxe demo sends real packets)"
	}
	return fmt.Sprintf("no AF_XDP here (%v): running on the in-memory link instead", err)
}

func (s settings) build(ctx context.Context, open func(*rig) error) (*rig, error) {
	r := &rig{settings: s, a: new(node), b: new(node)}
	err := open(r)
	if err == nil {
		err = r.connect(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	return r, nil
}

// close takes the rig down: devices first, then what they stand on.
func (r *rig) close() error {
	var err error
	for _, n := range []*node{r.a, r.b} {
		if n.dev != nil {
			err = errors.Join(err, n.dev.Close())
		}
	}
	for i := len(r.cleanup) - 1; i >= 0; i-- {
		err = errors.Join(err, r.cleanup[i]())
	}
	r.cleanup = nil
	return err
}

// onVeth opens both devices on a veth pair of the demo's own, in namespaces that vanish with the process.
func (r *rig) onVeth() error {
	pair, err := veth.New(veth.Options{MTU: r.deviceMTU()})
	if err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, pair.Close)
	open := func(e *veth.End) (driver.Port, error) {
		return xdp.Open(e.Iface, xdp.Options{Mode: r.mode, NetNS: e.Fd()})
	}
	pa, err := open(&pair.A)
	if err != nil {
		return err
	}
	pb, err := open(&pair.B)
	if err != nil {
		return errors.Join(err, pa.Close())
	}
	return r.open(r.lossy(pa, 0), r.lossy(pb, 1))
}

// lossy puts the plan around a port.
func (r *rig) lossy(p driver.Port, side uint64) driver.Port {
	if r.loss == 0 {
		return p
	}
	return loopback.Inject(p, r.seed*2+side, r.plan())
}

func (r *rig) inMemory() error {
	link, err := loopback.NewLink(loopback.Config{MTU: r.deviceMTU(), Seed: r.seed, Plan: r.plan()})
	if err != nil {
		return err
	}
	r.cleanup = append(r.cleanup, link.Close)
	return r.open(link.Port(0), link.Port(1))
}

func (r *rig) open(pa, pb driver.Port) (err error) {
	b := roce.WithExpert(roce.Expert{Spin: spin})
	if runtime.GOMAXPROCS(0) == 1 {
		b = roce.WithExpert(roce.Expert{Spin: roce.NoSpin}) // the one core is A's to spin on
	}
	if r.a.dev, err = roce.New(pa, roce.WithProgress(roce.Manual)); err != nil {
		return errors.Join(err, pb.Close())
	}
	r.b.dev, err = roce.New(pb, b)
	return err
}

// connect makes the objects and joins the queue pairs.
func (r *rig) connect(ctx context.Context) error {
	for _, n := range []*node{r.a, r.b} {
		if err := n.make(); err != nil {
			return err
		}
	}
	o := roce.ConnectOptions{MTU: r.mtu}
	for t := range ud {
		if err := r.join(ctx, t, o); err != nil {
			return err
		}
	}
	for _, n := range []*node{r.a, r.b} {
		if err := n.qps[ud].Activate(demoQKey); err != nil {
			return err
		}
	}
	var err error
	r.ah, err = r.a.dev.CreateAH(ctx, roce.AHAttr{Remote: r.b.qps[ud].Local().GID})
	return err
}

// join connects the QPs of one transport, A's to B's and B's to A's.
func (r *rig) join(ctx context.Context, t int, o roce.ConnectOptions) error {
	if err := r.a.qps[t].Connect(ctx, r.b.qps[t].Local(), o); err != nil {
		return err
	}
	return r.b.qps[t].Connect(ctx, r.a.qps[t].Local(), o)
}

func (n *node) make() (err error) {
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return err
	}
	if n.mr, err = n.pd.AllocMR(nodeSize, roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead|roce.RemoteAtomic); err != nil {
		return err
	}
	if n.cq, err = n.dev.CreateCQ(2 * transports * depth); err != nil {
		return err
	}
	if n.rcq, err = n.dev.CreateCQ(2 * transports * depth); err != nil {
		return err
	}
	for t, kind := range [transports]roce.QPType{roce.RC, roce.UC, roce.UD} {
		n.qps[t], err = n.dev.CreateQP(n.pd, roce.QPConfig{
			Type: kind, SendCQ: n.cq, RecvCQ: n.rcq, SendDepth: depth + 1, RecvDepth: depth,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// retransmits is how many packets both devices have sent again so far.
func (r *rig) retransmits() uint64 {
	return r.a.dev.Counters().Retransmits + r.b.dev.Counters().Retransmits
}

// newSeed draws a seed for a run that asked for none.
func newSeed() uint64 { return rand.Uint64() >> 32 }
