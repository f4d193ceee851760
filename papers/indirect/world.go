package indirect

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/xdp"
	"github.com/gorxe/gorxe/xdp/veth"
)

// pairMTU is the interfaces' MTU: Ethernet's, which carries path MTU 1024.
const pairMTU = 1500

// world is where trials take place: a veth pair, or nothing but memory.
type world struct {
	pair     *veth.Pair // nil: in memory
	mode     xdp.Mode
	datapath string
}

// delay is how long a frame is on the wire in memory, each way, besides the time that the link's rate costs.
const delay = 5 * time.Microsecond

func openWorld(link, mode string) (*world, error) {
	if link == linkMemory {
		return &world{datapath: "memory, in virtual time"}, nil
	}
	pair, err := veth.New(veth.Options{MTU: pairMTU})
	if err != nil {
		return nil, fmt.Errorf("%w: or try --link memory", err)
	}
	m, err := kit.Probe(&pair.A, mode)
	if err != nil {
		return nil, errors.Join(err, pair.Close())
	}
	return &world{pair: pair, mode: m}, nil
}

func (w *world) close() error {
	if w.pair == nil {
		return nil
	}
	return w.pair.Close()
}

// wire is the link of one trial.
type wire struct {
	ports [2]driver.Port
	link  *loopback.Link // in virtual time; nil: real time
	clock func() int64   // of link
	rand  func() uint64
}

func (w *wire) virtual() bool { return w.link != nil }

// options are those of both devices.
func (w *wire) options() []roce.Option {
	list := []roce.Option{roce.WithProgress(roce.Manual), roce.WithExpert(roce.Expert{MaxWindow: window})}
	if w.virtual() {
		list = append(list, roce.WithExpert(roce.Expert{Clock: w.clock, Rand: w.rand}))
	}
	return list
}

// wire opens both ends of the link for one trial, with what the experiment does to frames. The seed is the same for both methods.
func (w *world) wire(t *trial) (*wire, error) {
	plan := loopback.Plan{Loss: t.lfp, Bandwidth: t.rate}
	if w.pair == nil {
		plan.Delay, plan.Loss = delay, 0
		link, err := loopback.NewLink(loopback.Config{MTU: pairMTU, Virtual: true, Seed: t.seed, Plan: plan})
		if err != nil {
			return nil, err
		}
		if t.lfp > 0 {
			link.SetFilter(0, 1, newLosses(t.lfp, t.seed).filter)
			link.SetFilter(1, 0, newLosses(t.lfp, t.seed+1<<32).filter)
		}
		return &wire{
			ports: [2]driver.Port{link.Port(0), link.Port(1)}, link: link, clock: link.Now, rand: rand.New(rand.NewPCG(t.seed, 2)).Uint64,
		}, nil
	}
	l := &wire{rand: rand.New(rand.NewPCG(t.seed, 2)).Uint64}
	for i, end := range []*veth.End{&w.pair.A, &w.pair.B} {
		p, err := xdp.Open(end.Iface, xdp.Options{Mode: w.mode, NetNS: end.Fd()})
		if err != nil {
			if i == 1 {
				err = errors.Join(err, l.ports[0].Close())
			}
			return nil, err
		}
		w.datapath = p.Info().Datapath
		l.ports[i] = loopback.Inject(p, t.seed+uint64(i)<<32, plan)
	}
	return l, nil
}
