package statusbyte

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

const (
	linkVeth   = "veth"
	linkMemory = "memory"
	// pairMTU lets path MTU 4096 through, with all headers there may be.
	pairMTU = 4200
)

// epoch is where the clock of all measurements begins.
var epoch = time.Now()

// now is monotonic nanoseconds.
func now() int64 { return int64(time.Since(epoch)) }

// Who drives the devices.
var (
	manual = [2]roce.Progress{roce.Manual, roce.Manual}
	auto   = [2]roce.Progress{roce.Auto, roce.Auto}
	mixed  = [2]roce.Progress{roce.Auto, roce.Manual}
)

// world is two devices on one link.
type world struct {
	link     string
	cpus     []int
	dev      [2]*roce.Device // the first one sends
	datapath string
	share    float64 // of the wall clock that the receiving threads ran, the least since it was set
	stop     []func() error
}

// newWorld makes the link and the devices, of which the first one sends.
func newWorld(link string, cpus []int, progress [2]roce.Progress) (*world, error) {
	return newTeedWorld(link, cpus, progress, func(_ int, p driver.Port) driver.Port { return p })
}

// newTeedWorld is newWorld with something around the ports, of which the first one sends.
func newTeedWorld(link string, cpus []int, progress [2]roce.Progress, tee func(i int, p driver.Port) driver.Port) (*world, error) {
	w := &world{link: link, cpus: cpus}
	ports, remove, err := kit.OpenLink(link == linkVeth, pairMTU)
	if err != nil {
		return nil, err
	}
	w.stop = append(w.stop, remove)
	for i, port := range ports {
		if err != nil {
			_ = port.Close()
			continue
		}
		if w.dev[i], err = roce.New(tee(i, port), roce.WithProgress(progress[i])); err == nil { // the port is the device's, whatever happens
			w.stop = append(w.stop, w.dev[i].Close)
		}
	}
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	w.datapath = w.dev[0].Info().Datapath
	return w, nil
}

// addr is where the receiving device listens.
func (w *world) addr(port uint16) netip.AddrPort {
	for _, g := range w.dev[1].GIDs() {
		if g.Addr.Is4() {
			return netip.AddrPortFrom(g.Addr, port)
		}
	}
	return netip.AddrPortFrom(w.dev[1].GIDs()[0].Addr, port)
}

// close takes the devices apart, then the link.
func (w *world) close() error {
	var err error
	for _, f := range slices.Backward(w.stop) {
		err = errors.Join(err, f())
	}
	w.stop = nil
	return err
}
