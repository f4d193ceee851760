package uverbs

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

// Limits of a context. A program that exceeds one gets ENOMEM.
const (
	maxObjects  = 1 << 16 // PDs, MRs, CQs, QPs, SRQs, AHs and channels together
	maxRings    = 1 << 30 // bytes of rings
	maxMirror   = 1 << 40 // bytes of registered memory
	maxContexts = 1 << 10 // contexts of a device
)

// Config holds the parameters of a Device.
type Config struct {
	Name string // of the RDMA device, for example "rxe0"
}

// Device is an uverbs device, which programs see as /dev/infiniband/uverbs0.
type Device struct {
	dev    *roce.Device
	name   string
	loop   *loop.Loop
	engine *qp.Engine
	events sync.WaitGroup
	bells  *bells

	openSpace func(pid int) (*space, error) // tests replace it

	mu       sync.Mutex
	contexts map[*Context]struct{}
	opened   uint32                  // contexts so far
	byQP     map[*roce.QP]*queuePair // the objects of events
	spaces   map[int][]*space        // of all contexts, by PID
	closed   bool

	// Owner of the loop only.
	dirty     []*space // spaces with stores to be written
	loaded    loaded
	pending   []*completionQueue // with completions
	hot       []*queuePair       // with send work requests
	queues    []*queuePair       // all, at queuePair.index
	crowd     crowd
	busyRTT   qp.Time // the constant; tests change it
	watched   bool    // the port watches bells; the owner reads them
	ahs       map[uint32]*addressHandle
	lastAH    uint32
	turn      uint64                      // counts calls of Settle
	undrained int                         // steps since the doorbells were read
	wcs       [32]qp.WC                   // scratch
	wqe       [sqElement + maxInline]byte // scratch
	sges      [qp.MaxSGE]qp.SGE           // scratch
	wr        [1]qp.SendWR                // scratch
}

// NewDevice returns an uverbs device on dev, which stays the caller's. It takes over dev.Events.
func NewDevice(dev *roce.Device, c Config) (*Device, error) {
	d := &Device{dev: dev, name: c.Name, loop: inside.Loop(dev), engine: inside.Engine(dev),
		contexts: map[*Context]struct{}{}, byQP: map[*roce.QP]*queuePair{},
		spaces: map[int][]*space{},
		ahs:    map[uint32]*addressHandle{}, crowd: newCrowd(), openSpace: openSpace,
		busyRTT: busyRTT}
	var err error
	if d.bells, err = newBells(); err != nil {
		d.crowd.close()
		return nil, err
	}
	if !d.loop.Do(func(qp.Time) { d.watched = d.loop.SetGuest(d, d.bells.fd) }) {
		d.bells.close()
		d.crowd.close()
		return nil, roce.ErrClosed
	}
	if !d.watched {
		d.bells.start()
	}
	d.events.Go(d.forwardEvents)
	return d, nil
}

// Open creates the context of an open file of the device for the process pid.
func (d *Device) Open(pid int) (*Context, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, roce.ErrClosed
	}
	if len(d.contexts) >= maxContexts {
		return nil, fmt.Errorf("uverbs: %d programs or open files use the device; the limit is %d",
			len(d.contexts), maxContexts)
	}
	f, err := newFile(maxRings,
		func(n int) error { return inside.Charge(d.dev, n, "a queue of the program") },
		func(n int) { inside.Discharge(d.dev, n) })
	if err != nil {
		return nil, err
	}
	c := &Context{dev: d, file: f, pid: pid, number: d.opened + 1, objects: map[uint32]any{}, spaces: map[int]*space{}}
	if err := d.bells.add(c); err != nil {
		f.close()
		return nil, err
	}
	d.opened++
	d.contexts[c] = struct{}{}
	return c, nil
}

// Close closes all contexts. The programs get the event DEVICE_FATAL, and their calls fail.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	for _, c := range d.open() {
		c.event(0, eventDeviceFatal)
		c.Close()
	}
	d.do(func() { d.loop.SetGuest(nil, -1) })
	d.bells.close()
	d.crowd.close()
	return nil
}

// NodeGUID returns the node GUID, which is derived from the MAC address.
func (d *Device) NodeGUID() [8]byte {
	m := d.dev.Info().MAC
	return [8]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}

// Executes must be called before a process executes another program. Its PID then stands for
// another address space. The registered memory stays that of the old one.
func (d *Device) Executes(pid int) {
	d.mu.Lock()
	list := slices.Clone(d.spaces[pid])
	d.mu.Unlock()
	if len(list) > 0 {
		d.do(func() {
			for _, s := range list {
				s.fast.on = false
			}
		})
	}
}

// forget removes a space from those of a process.
func (d *Device) forget(pid int, s *space) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.spaces[pid] = slices.DeleteFunc(d.spaces[pid], func(o *space) bool { return o == s })
	if len(d.spaces[pid]) == 0 {
		delete(d.spaces, pid)
	}
}

// do runs f as the owner of the loop, unless the device is closed. The completions that f causes
// are visible when it returns.
func (d *Device) do(f func()) bool {
	return d.loop.Do(func(now qp.Time) {
		f()
		d.Settle(now)
	})
}

// Settle implements loop.Guest.
func (d *Device) Settle(qp.Time) {
	d.turn++
	d.loaded = loaded{}
	for i, s := range d.dirty {
		s.flush()
		d.dirty[i] = nil
	}
	d.dirty = d.dirty[:0]
	if len(d.hot) > 0 {
		d.settleSends()
	}
	// In the order of their first completions: programs like ib_send_lat -e depend on it.
	for i := 0; i < len(d.pending); i++ {
		d.pending[i].drain()
	}
	clear(d.pending)
	d.pending = d.pending[:0]
}

// settleSends updates the consumer indices of send queues, and continues those that were full.
func (d *Device) settleSends() {
	kept := d.hot[:0]
	for _, q := range d.hot {
		if q.settle() {
			kept = append(kept, q)
		}
	}
	clear(d.hot[len(kept):])
	d.hot = kept
}

// forwardEvents passes asynchronous events to the contexts of their objects.
func (d *Device) forwardEvents() {
	for e := range d.dev.Events() {
		kind, ok := eventTypes[e.Kind]
		if !ok {
			continue
		}
		d.mu.Lock() // after its destruction, a QP has no events
		if q := d.byQP[e.QP]; q != nil {
			if q.c.event(q.user, kind) {
				q.events.Add(1)
			}
		} else if e.QP == nil && e.CQ == nil && e.SRQ == nil {
			for c := range d.contexts {
				c.event(port, kind)
			}
		}
		d.mu.Unlock()
	}
}

// errClosed reports whether an error says that an object or the device is closed.
func errClosed(err error) bool { return errors.Is(err, roce.ErrClosed) }
