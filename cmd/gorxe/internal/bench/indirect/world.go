package indirect

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce/frame"
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

func openWorld(link, mode string) (*world, error) {
	if link == linkMemory {
		return &world{datapath: "memory"}, nil
	}
	m, err := xdp.ParseMode(mode)
	if err != nil {
		return nil, err
	}
	pair, err := veth.New(veth.Options{MTU: pairMTU})
	if err != nil {
		return nil, fmt.Errorf("%w: or try --link memory", err)
	}
	return &world{pair: pair, mode: m}, nil
}

func (w *world) close() error {
	if w.pair == nil {
		return nil
	}
	w.pair.Close()
	return nil
}

// ports opens both ends of the link for one trial, with what the experiment does to frames. The seed is the same for both
// methods.
func (w *world) ports(x *experiment, rate int64, seed uint64) (ports [2]frame.Port, err error) {
	plan := loopback.Plan{Loss: x.lfp, Bandwidth: rate}
	if w.pair == nil {
		link, err := loopback.NewLink(loopback.Config{MTU: pairMTU})
		if err != nil {
			return ports, err
		}
		for i := range ports {
			ports[i] = loopback.Inject(link.Port(i), seed+uint64(i)<<32, plan)
		}
		return ports, nil
	}
	for i, end := range []*veth.End{&w.pair.A, &w.pair.B} {
		p, err := xdp.Open(end.Iface, xdp.Options{Mode: w.mode, NetNS: end.Fd()})
		if err != nil {
			if i == 1 {
				err = errors.Join(err, ports[0].Close())
			}
			return ports, err
		}
		w.datapath = p.Info().Datapath
		ports[i] = loopback.Inject(p, seed+uint64(i)<<32, plan)
	}
	return ports, nil
}
