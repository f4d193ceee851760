package roce

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/loop"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// Device is a software RDMA NIC on one Port. Its methods are safe for concurrent use.
type Device struct {
	loop       *loop.Loop
	eng        *qp.Engine
	manual     bool
	net        driver.Network
	groups     driver.Groups  // nil: the host cannot join groups
	finder     driver.Finder  // nil: the network does not remember next hops
	router     driver.Router  // nil: the routes are not known
	addrs      []netip.Prefix // what the loop knows; guarded by mu, like routes
	routes     []netip.Prefix
	mrs        *mr.Table
	rand       func() uint64 // safe for concurrent use
	pkeys      pkeyTable
	features   Features
	congestion CongestionControl
	classMap   ClassMap
	class      int                                      // of QPs that choose none
	virtual    bool                                     // Expert.Clock is set
	wait       func(context.Context, func() bool) error // Expert.Wait
	portKind   string                                   // DeviceInfo.Port
	portReason string
	service    membership
	sockets    bool // the port has UDP sockets, so that own addresses can be reached
	yields     bool // polls without result call Loop.Yield
	stats      func() driver.Stats

	// ctl serializes the creation and destruction of objects, as mr.Table requires. The owner never
	// locks it.
	ctl    sync.Mutex
	pds    map[*PD]struct{}
	mems   map[*MR]struct{}
	mws    map[*MW]struct{}
	fasts  map[*FastMR]struct{}
	cqs    map[*CQ]struct{}
	srqs   map[*SRQ]struct{}
	qps    map[*QP]*slab
	slab   *slab // the slab of the next QP
	mem    budget
	limits Limits
	huge   hugePages
	iovas  iovaCounter // in use if runs are reproducible
	window int         // of prefetching
	ahs    map[*AH]struct{}

	postPrefetch bool // counted in the global postPrefetch

	members map[GID]int          // multicast groups that the host has joined: number of QPs in each
	joined  map[*QP]map[GID]bool // the groups of each QP that is in one

	mu   sync.Mutex // guards gids, addrs, routes, info and end
	gids []GIDEntry
	info DeviceInfo
	end  *Counters // the last counters, after Close

	eventMu    sync.Mutex // serializes senders and Close; events are rare
	events     chan Event
	eventsOver bool
	eventDrops atomic.Uint64

	closing  atomic.Bool
	done     chan struct{} // closed by stop
	doneOnce sync.Once
	failure  atomic.Pointer[error]    // of the port; see Err
	release  func()                   // see claim
	log      *logger                  // nil: none
	trace    atomic.Pointer[traceSet] // nil: nothing is traced. Replaced with ctl held
	opened   time.Time
	clock    func() int64  // Expert.Clock
	finished chan struct{} // closed when Close has ended
	closeErr error
	watcher  sync.WaitGroup
	cancel   context.CancelFunc // ends the watcher's lookups

	// Owner of the loop only.
	gsi        *gsi
	engineCQs  map[*qp.CQ]*CQ // the objects of events
	engineSRQs map[*qp.SRQ]*SRQ
}

// DeviceInfo is the current state of a Device.
type DeviceInfo struct {
	Name      string   `json:"name"`
	Datapath  string   `json:"datapath"` // "afxdp-native", "afxdp-generic", "udp", "memory", ...
	MAC       bth.MAC  `json:"-"`
	MTU       int      `json:"mtu"`      // of the interface, bytes of IP packets
	ActiveMTU MTU      `json:"path_mtu"` // the largest path MTU that fits MTU
	Up        bool     `json:"up"`
	Queues    int      `json:"queues"`
	Progress  Progress `json:"-"`
	Note      string   `json:"note,omitempty"` // explains an unexpected data path or path MTU

	// Port is the kind of port that Open has chosen, "xdp" or "udp"; "" after New.
	Port string `json:"port,omitempty"`
	// PortReason says why Open has chosen PortUDP although WithPort(PortUDP) was not given.
	PortReason string `json:"port_reason,omitempty"`
	// Service is the socket of the node service that the Device has joined; "": none.
	Service string `json:"service,omitempty"`
}

// Open creates a Device on a network interface, over AF_XDP if the process may use it, and over UDP
// sockets otherwise; WithPort selects one. DeviceInfo says which. Other traffic of the interface is
// not affected.
//
// AF_XDP needs root, or the capabilities CAP_NET_ADMIN, CAP_NET_RAW, CAP_BPF and CAP_IPC_LOCK. UDP
// sockets need no privileges, and also work on the loopback interface. If name is an IP address of
// this host, the Device uses UDP sockets and this address only. Two Devices on a host, for example
// on 127.0.0.1 and 127.0.0.2, can be connected.
//
// If a node service (`gorxe up`) serves the interface in the same network namespace, and the user
// may write to its socket, Open joins it like OpenService, unless the program asks for AF_XDP with
// WithPort or WithXDP, or uses WithoutService. DeviceInfo.Service says so. Devices of one service
// share addresses, and can be connected with each other.
//
// Errors: ErrNoInterface, ErrNoAddress, ErrLinkDown, ErrBusy, ErrPortInUse if another program uses
// UDP port 4791 of an address, ErrPermission, ErrMTUTooSmall, ErrUnsupported, ErrXDPOptions,
// ErrServiceRefused, and those of New.
func Open(name string, opts ...Option) (*Device, error) {
	c := newConfig(opts)
	port, reason, err := openPort(name, c)
	if err != nil {
		return nil, err
	}
	return openOn(port, reason, c, opts)
}

// New creates a Device on a Port. The Device owns the port and closes it, even if New returns an
// error, except ErrPortInUse. The port, or a port that it wraps and returns from a method Unwrap,
// must implement Network; otherwise set Expert.Network.
//
// Errors: ErrPortInUse, ErrClosed or ErrGone if the port was closed or its interface removed,
// ErrNoNetwork, ErrMTU, ErrInvalid for a limit of Expert that is out of range or a prefix of
// WithPeers that is not valid, ErrPrefetch, ErrPKey, ErrClass, ErrClassMap, and the operating
// system's error for a bad Expert.CPU, or ErrUnsupported if it is not Linux.
func New(port Port, opts ...Option) (*Device, error) {
	if port == nil {
		return nil, fmt.Errorf("%w: the port is nil", ErrInvalid)
	}
	release, err := claim(port)
	if err != nil {
		return nil, err
	}
	hugeHere() // reads a file now; the program may give up access to files later
	d, err := build(port, newConfig(opts))
	if err != nil {
		err = errors.Join(err, port.Close())
		release()
		return nil, err
	}
	d.release = release
	d.reportTo(port)
	d.log.opened(d)
	return d, nil
}

// build creates a Device on a port that it has claimed. After an error the port is still open.
func build(port driver.Port, c *config) (*Device, error) {
	if err := checkPort(port); err != nil {
		return nil, err
	}
	if err := c.applyLimits(port); err != nil {
		return nil, err
	}
	d, err := newObjects(port, c)
	if err != nil {
		return nil, err
	}
	info := port.Info()
	numbers := d.service.joinedBy(port, c.host)
	if err := d.createEngine(c, &info, numbers); err != nil {
		return nil, err
	}
	d.loop = loop.New(loop.Config{
		Port: port, Engine: d.eng, Host: host{d}, Manual: d.manual, Spin: c.spin, Clock: c.clock,
		Failed: d.fail, IsMemory: d.mrs.Contains, LinkRate: c.linkRate,
		BacklogLimit: c.backlogLimit,
	})
	d.yields = !d.manual || d.loop.Simulated()
	peers, err := c.peers.access()
	if err != nil {
		return nil, err
	}
	if d.gsi, err = newGSI(d, info.MAC, numbers.ids, peers); err != nil {
		return nil, fmt.Errorf("roce: connection manager: %w", err)
	}
	if d.log = newLogger(c.logger, c.clock); d.log != nil && c.host != nil {
		c.host.SetLog(d.log.user)
	}
	d.opened, d.clock = time.Now(), c.clock
	if c.trace != nil {
		if err := d.setTraces(&traceSet{all: c.trace}); err != nil {
			return nil, err
		}
	}
	if err := d.start(c, info); err != nil {
		_ = d.setTraces(nil)
		d.log.close()
		return nil, err
	}
	return d, nil
}

// newObjects returns a Device with its tables of objects and the options that it keeps, without
// engine and loop.
func newObjects(port driver.Port, c *config) (d *Device, err error) {
	d = &Device{
		manual: c.progress == Manual, virtual: c.clock != nil, wait: c.wait,
		net:    networkOf[driver.Network](port, c),
		groups: networkOf[driver.Groups](port, c),
		finder: networkOf[driver.Finder](port, c),
		router: networkOf[driver.Router](port, c),
		stats:  statsOf(port), rand: safeRand(c.rand), features: c.features,
		congestion: c.congestion, classMap: c.classMap,
		class: c.class, portKind: c.portKind, portReason: c.portReason,
		pds: map[*PD]struct{}{}, mems: map[*MR]struct{}{}, mws: map[*MW]struct{}{},
		fasts: map[*FastMR]struct{}{}, cqs: map[*CQ]struct{}{}, srqs: map[*SRQ]struct{}{},
		qps: map[*QP]*slab{}, ahs: map[*AH]struct{}{}, members: map[GID]int{},
		joined:    map[*QP]map[GID]bool{},
		engineCQs: map[*qp.CQ]*CQ{}, engineSRQs: map[*qp.SRQ]*SRQ{},
		limits: c.limits, mem: newBudget(lower(c.maxMemory, c.limits.Memory)),
		events: make(chan Event, maxEvents),
		done:   make(chan struct{}), finished: make(chan struct{}),
	}
	if d.net == nil {
		return nil, ErrNoNetwork
	}
	if c.clock != nil || c.rand != nil {
		d.iovas.next = firstIOVA
	}
	if d.pkeys, err = newPKeyTable(c.pkeys); err != nil {
		return nil, err
	}
	if err := d.classMap.check(); err != nil {
		return nil, err
	}
	if err := c.checkLinkRate(); err != nil {
		return nil, err
	}
	return d, checkClass(c.class)
}

// createEngine creates the memory table and the engine for a port.
func (d *Device) createEngine(c *config, info *driver.Info, numbers slotRange) (err error) {
	d.mrs, err = mr.NewTable(mr.Config{MaxPD: c.maxPD, MaxMR: c.maxMR, Rand: d.rand})
	if err != nil {
		return fmt.Errorf("%w: memory table: %w", ErrInvalid, err)
	}
	d.sockets = info.SourcePort != 0 || c.host != nil
	if c.maxWindow == 0 {
		c.maxWindow = windowFor(info, bth.MTUFor(info.MTU))
	}
	engine := qp.Config{MRs: d.mrs, Rand: d.rand, MaxQP: c.maxQP, QPNs: numbers.qpns,
		MaxWindow: c.maxWindow, MaxReorderMemory: c.maxReorder,
		Congestion: qp.Congestion(c.congestion), DCQCN: c.dcqcn.engine(), Rate: c.limits.Rate,
		Runs: info.Runs}
	for i := range c.classes {
		engine.Classes[i] = c.classes[i].engine()
	}
	d.eng, err = qp.NewEngine(engine)
	d.window = qp.DefaultPrefetch
	if err == nil && c.prefetch != nil {
		d.window = *c.prefetch
		err = d.eng.SetPrefetch(d.window)
	}
	if err != nil {
		return fmt.Errorf("%w: engine: %w", ErrInvalid, err)
	}
	return nil
}

// start reads the addresses and starts the goroutines.
func (d *Device) start(c *config, info driver.Info) error {
	d.setInfo(info)
	if d.Info().ActiveMTU == 0 {
		return fmt.Errorf("%w: %s has MTU %d", ErrMTU, d.info.Name, d.info.MTU)
	}
	d.setPortMTU(info.MTU)
	d.readAddrs()
	if d.manual {
		d.watch()
		return nil
	}
	if err := d.loop.Start(c.cpu); errors.Is(err, errors.ErrUnsupported) {
		return fmt.Errorf("roce: Expert.CPU needs Linux: %w", ErrUnsupported)
	} else if err != nil {
		return fmt.Errorf("roce: pin the progress thread to CPU %d: %w; "+
			"choose a CPU that this process may use", c.cpu, err)
	}
	d.watch()
	return nil
}

// Info returns the current state of the device.
func (d *Device) Info() DeviceInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.info
}

func (d *Device) setInfo(p driver.Info) (old, now DeviceInfo) {
	d.mu.Lock()
	defer d.mu.Unlock()
	old = d.info
	d.info = DeviceInfo{
		Name: p.Name, Datapath: p.Datapath, MAC: p.MAC, MTU: p.MTU, ActiveMTU: bth.MTUFor(p.MTU),
		Up: p.Up, Queues: p.Queues, Progress: Auto, Note: p.Note,
		Port: d.portKind, PortReason: d.portReason, Service: p.Service,
	}
	if d.manual {
		d.info.Progress = Manual
	}
	return old, d.info
}

// Progress runs one step of the protocol on a Device with Manual progress. It returns the amount of
// work done, 0 for none or while another goroutine runs a step. With Auto progress it only yields
// the processor from time to time. A program calls it in loops that poll memory:
//
//	for mr.Load64(0) == 0 {
//		dev.Progress()
//	}
func (d *Device) Progress() int {
	work := 0
	if d.loop.Driven() {
		if d.virtual {
			d.pollNetwork()
		}
		work = d.loop.TryStep()
	}
	if work == 0 && d.yields {
		d.loop.Yield()
	}
	return work
}

// Drive lets the calling goroutine run the protocol of a Device with Auto progress, in its calls of
// CQ.Poll, CQ.Wait and Progress, until it calls release. So a program that answers messages needs
// no handover between threads. In between it must make these calls again and again, and must not
// block elsewhere, because the goroutine of the Device rests. Several goroutines may do this at the
// same time. With Manual progress it does nothing.
func (d *Device) Drive() (release func()) {
	d.loop.Drive()
	return sync.OnceFunc(d.loop.Release)
}

// NextTimeout returns the time, in nanoseconds of Expert.Clock, at which Progress must be called
// even if no packet arrives. It returns false if no timer runs.
func (d *Device) NextTimeout() (int64, bool) {
	var t qp.Time
	var ok bool
	if d.do(func(qp.Time) { t, ok = d.loop.NextTimeout() }) != nil {
		return 0, false
	}
	return int64(t), ok
}

// Close destroys the Device and all its objects, in the right order: outstanding work requests
// complete with WRFlushErr (their completions can still be polled), callers of Wait return with
// ErrClosed, memory regions are deregistered, goroutines end, and the port is closed. Close tells
// the peers of connections, and waits for their answers: about 630 ms if one does not answer.
// Closing twice is harmless; the second call waits for the first.
func (d *Device) Close() error {
	d.ctl.Lock()
	if d.closing.Swap(true) {
		d.ctl.Unlock()
		<-d.finished
		return d.closeErr
	}
	d.stop()
	d.cancel()
	d.setPostPrefetch(d.window)
	for _, q := range d.sortedQPs() {
		q.shut()
	}
	_ = d.setTraces(nil)
	if d.slab != nil { // no QP of it is open
		d.dropSlab(d.slab)
	}
	_ = d.do(d.gsi.endAll)
	for s := range d.srqs {
		s.shut()
	}
	for c := range d.cqs {
		c.shut()
	}
	d.shutMemory()
	d.ctl.Unlock()
	d.awaitPeers()
	_ = d.do(d.gsi.forgetAll)
	d.watcher.Wait()
	last := d.Counters()
	d.closeErr = d.loop.Stop()
	d.mu.Lock()
	d.end = &last
	d.mu.Unlock()
	d.endEvents()
	d.log.line(slog.LevelInfo, netip.Addr{}, "device closed", slog.String("device", d.Info().Name))
	d.log.close()
	d.release()
	close(d.finished)
	return d.closeErr
}

// sortedQPs returns the QPs in an order that a replay repeats. The caller holds ctl.
func (d *Device) sortedQPs() []*QP {
	return slices.SortedFunc(maps.Keys(d.qps), func(a, b *QP) int {
		return cmp.Compare(a.QPN(), b.QPN())
	})
}

// shutMemory destroys all memory regions and PDs, with one grace period.
func (d *Device) shutMemory() {
	// Windows first: a region with bound windows is in use.
	for w := range d.mws {
		_ = w.kill()
	}
	for f := range d.fasts {
		_ = f.kill()
	}
	mems := make([]*MR, 0, len(d.mems))
	for m := range d.mems {
		_ = m.kill()
		mems = append(mems, m)
	}
	d.grace()
	for _, m := range mems {
		_ = m.free()
	}
	for p := range d.pds {
		p.shut()
	}
}

// grace returns when the current step has ended: then no packet whose key was checked before is
// still being copied. The stores of such copies happen before grace returns.
func (d *Device) grace() { _ = d.do(func(qp.Time) {}) }

// open returns an error if the device is closed or gone. If it is closed while the caller holds
// ctl, Close waits.
func (d *Device) open() error { return d.Err() }

// networkOf returns what Expert.Network or the port implements of the network, as an interface T,
// or nil.
func networkOf[T any](port driver.Port, c *config) (t T) {
	if c.network != nil {
		t, _ = c.network.(T)
		return t
	}
	t, _ = driver.Find[T](port)
	return t
}

func statsOf(port driver.Port) func() driver.Stats {
	if s, ok := driver.Find[driver.StatsReader](port); ok {
		return s.Stats
	}
	return func() driver.Stats { return driver.Stats{} }
}
