//go:build linux

package xdp

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/osnet"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Open opens a Port on an interface. It checks that RoCE can run there, attaches the XDP program,
// and binds a socket to every queue. Other traffic of the interface continues. Attaching in native
// mode makes some drivers reset the link for a moment.
//
// The error wraps ErrNoInterface, ErrNoAddress, ErrLinkDown, ErrBusy, ErrPermission,
// ErrMTUTooSmall, ErrUnsupported or ErrOptions and says what to do. After an error nothing remains
// attached.
func Open(iface string, o Options) (*Port, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	var p *Port
	err := osnet.In(o.NetNS, func() (err error) {
		p, err = open(iface, o)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", iface, err)
	}
	return p, nil
}

// opener is a Port under construction.
type opener struct {
	Port
	Options
	link   netlink.Link
	driver string // "" if unknown
	count  int    // number of queues to serve
	frags  bool   // the program accepts multi-buffer frames
}

func open(iface string, opts Options) (_ *Port, err error) {
	o := &opener{Options: opts}
	defer func() {
		if err != nil {
			o.undo()
		}
	}()
	if o.Port.net, err = newNetwork(); err != nil {
		return nil, err
	}
	for _, step := range []func() error{
		func() error { return o.findLink(iface) },
		o.checkLink, o.countQueues, o.attach, o.bindFirst, o.bindOthers, o.readState, o.makeEvent,
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	for _, q := range o.Port.queues {
		if err := o.prog.addSocket(q); err != nil {
			return nil, err
		}
	}
	o.openBulk()
	o.net.watch()
	return &o.Port, nil
}

// undo releases everything after an error.
func (o *opener) undo() {
	if o.prog != nil {
		_ = o.prog.close()
	}
	for _, q := range o.Port.queues {
		q.close()
		q.unmapUMEM()
	}
	if o.net != nil {
		o.net.close()
	}
	o.sleeper.Close()
}

func (o *opener) findLink(iface string) (err error) {
	o.link, err = o.net.handle.LinkByName(iface)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return fmt.Errorf("%w: list the interfaces with `ip link`", ErrNoInterface)
	}
	if err != nil {
		return fmt.Errorf("find interface: %w", err)
	}
	o.net.index = o.link.Attrs().Index
	o.driver = osnet.Driver(iface)
	return nil
}

func (o *opener) checkLink() error {
	if err := checkAttrs(o.link.Attrs()); err != nil {
		return err
	}
	return o.awaitAddrs()
}

// checkAttrs returns an error if the link attributes show that the interface cannot be opened.
func checkAttrs(a *netlink.LinkAttrs) error {
	switch {
	case a.EncapType != "ether":
		return fmt.Errorf("%w: an interface of type %s does not carry Ethernet frames",
			ErrUnsupported, a.EncapType)
	case a.RawFlags&unix.IFF_UP == 0:
		return fmt.Errorf("%w: set it up with `ip link set dev %s up`", ErrLinkDown, a.Name)
	case bth.MTUFor(a.MTU) == 0:
		return fmt.Errorf("%w: MTU is %d, minimum is %d (path MTU 256 and %d bytes of headers): "+
			"raise it with `ip link set dev %s mtu 1500`",
			ErrMTUTooSmall, a.MTU, 256+bth.Headroom, bth.Headroom, a.Name)
	case a.Xdp != nil && a.Xdp.Attached:
		return busyError(a.Name, a.Xdp.ProgId)
	}
	return nil
}

func noAddress(name string) error {
	return fmt.Errorf("%w and therefore no GID: add one with `ip addr add ADDRESS/PREFIX dev %s`",
		ErrNoAddress, name)
}

func busyError(name string, id uint32) error {
	what := fmt.Sprintf("XDP program %d", id)
	if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
		if info, err := p.Info(); err == nil && info.Name != "" {
			what += fmt.Sprintf(" (%s)", info.Name)
			if info.Name == progName {
				what = "another gorxe process, " + what
			}
		}
		p.Close()
	}
	return fmt.Errorf("%w by %s: end the process that attached it, or detach it with "+
		"`ip link set dev %s xdp off` (`xdpgeneric off` in generic mode)", ErrBusy, what, name)
}

func (o *opener) awaitAddrs() error {
	list, err := osnet.AwaitAddrs(func() (osnet.Addresses, error) { return o.net.readAddrs(o.link) })
	if err == nil && len(list) == 0 {
		err = noAddress(o.link.Attrs().Name)
	}
	return err
}

// countQueues determines how many receive queues to serve.
func (o *opener) countQueues() error {
	have := min(rxQueues(o.link), maxQueues)
	o.count = o.Options.Queues
	if o.count == 0 {
		o.count = have
	}
	if o.count > have {
		return fmt.Errorf("%w: %d queues requested, but %s has %d", ErrOptions, o.count,
			o.link.Attrs().Name, have)
	}
	return o.sizes(o.count)
}

// rxQueues returns the number of receive queues in use, or of allocated queues if the driver does
// not report it.
func rxQueues(l netlink.Link) int {
	if c, err := osnet.GetChannels(l.Attrs().Name); err == nil && c.RXCount+c.CombinedCount > 0 {
		return int(c.RXCount + c.CombinedCount)
	}
	return max(1, l.Attrs().NumRxQueues)
}

// vethKind is the link type of a veth. It has native XDP, which is slow, and no zero-copy.
const vethKind = "veth"

func isVeth(l netlink.Link) bool { return l.Type() == vethKind }

// modes lists the modes to try, in order.
func (o *opener) modes() []Mode {
	switch {
	case o.Mode != Auto:
		return []Mode{o.Mode}
	case isTrue(o.ZeroCopy):
		return []Mode{Native}
	case autoMode(o.link.Type(), o.driver, o.link.Attrs().MTU) == Generic:
		return []Mode{Generic}
	}
	return []Mode{Native, Generic}
}

// attach loads the program and attaches it in the first mode that works.
func (o *opener) attach() (err error) {
	// The program accepts multi-buffer frames only if the sockets do. Otherwise drivers would
	// deliver such frames and the socket would drop them. Without the flag, drivers refuse large
	// MTUs.
	if o.frags = !isFalse(o.MultiBuffer) && kernelHasMultiBuffer(); !o.frags &&
		isTrue(o.MultiBuffer) {
		return fmt.Errorf("%w: multi-buffer AF_XDP sockets require Linux 6.6", ErrUnsupported)
	}
	if o.prog, err = loadProgram(o.count, o.frags, o.Shared); err != nil {
		return err
	}
	for _, m := range o.modes() {
		if err = o.prog.attach(o.net.index, m); err == nil {
			return nil
		}
		err = o.attachError(m, err)
		if errors.Is(err, ErrBusy) || errors.Is(err, ErrPermission) {
			break
		}
	}
	return err
}

func (o *opener) attachError(m Mode, err error) error {
	name := o.link.Attrs().Name
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w by an XDP program: end the process that attached it, or detach it with "+
			"`ip link set dev %s xdp off`: %w", ErrBusy, name, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: attaching an XDP program requires CAP_NET_ADMIN and CAP_BPF: %w",
			ErrPermission, err)
	case errors.Is(err, ebpf.ErrNotSupported):
		return fmt.Errorf("%w: BPF links for XDP require Linux 5.9: %w", ErrUnsupported, err)
	case m == Native:
		return fmt.Errorf("%w: the driver of %s refuses a native XDP program at MTU %d: use a smaller MTU or generic mode: %w",
			ErrUnsupported, name, o.link.Attrs().MTU, err)
	}
	return fmt.Errorf("%w: attach the XDP program in generic mode: %w", ErrUnsupported, err)
}

// binding is one way to bind a socket.
type binding struct {
	multi bool
	flags uint16
}

// bindings lists the ways to bind, the best first. Zero-copy without multi-buffer is better than
// copying with multi-buffer, provided that frames fit in a chunk.
func (o *opener) bindings() (list []binding) {
	long := o.link.Attrs().MTU+etherLen+vlanLen > chunkSize-headroom
	zero := o.prog.mode == Native && !isVeth(o.link) && !isFalse(o.ZeroCopy) || isTrue(o.ZeroCopy)
	single := !isTrue(o.MultiBuffer)
	if zero {
		if o.frags {
			list = append(list, binding{true, unix.XDP_ZEROCOPY | unix.XDP_USE_SG})
		}
		if single && !long {
			list = append(list, binding{false, unix.XDP_ZEROCOPY})
		}
	}
	if !isTrue(o.ZeroCopy) {
		if o.frags {
			list = append(list, binding{true, unix.XDP_COPY | unix.XDP_USE_SG})
		}
		if single {
			list = append(list, binding{false, unix.XDP_COPY})
		}
	}
	return list
}

// bindFirst binds the first queue in the first way that works. The other queues use the same.
func (o *opener) bindFirst() error {
	var err error
	bindings := o.bindings()
	if len(bindings) == 0 {
		return fmt.Errorf("%w: frames of MTU %d do not fit zero-copy sockets without multi-buffer",
			ErrUnsupported, o.link.Attrs().MTU)
	}
	for _, w := range bindings {
		if err = o.bind(0, w); err == nil {
			o.multi = w.multi
			return nil
		}
		if errors.Is(err, ErrBusy) || errors.Is(err, ErrPermission) {
			return err
		}
	}
	return fmt.Errorf("%w: bind AF_XDP socket to %s: %w", ErrUnsupported, o.link.Attrs().Name, err)
}

func (o *opener) bindOthers() error {
	w := binding{o.multi, unix.XDP_COPY}
	if o.Port.queues[0].zeroCopy {
		w.flags = unix.XDP_ZEROCOPY
	}
	if w.multi {
		w.flags |= unix.XDP_USE_SG
	}
	for id := 1; id < o.count; id++ {
		if err := o.bind(uint32(id), w); err != nil {
			return fmt.Errorf("queue %d: %w", id, err)
		}
	}
	return nil
}

func (o *opener) bind(id uint32, w binding) error {
	q, err := newQueue(&layout{id: id, ring: o.RingSize, chunks: o.Chunks, adapt: o.adapt,
		multi: w.multi, transmit: id == 0, busyPoll: o.BusyPoll})
	if err != nil {
		return err
	}
	if err := q.bind(o.net.index, w.flags); err != nil {
		q.close()
		q.unmapUMEM()
		return err
	}
	o.Port.queues = append(o.Port.queues, q)
	return nil
}

// readState publishes the first snapshot. The sockets' capabilities are known by now.
func (o *opener) readState() error {
	o.capacity = chunkSize - headroom
	if o.multi {
		o.capacity += chunkSize
	}
	o.net.limit = o.limiter(o.capacity - etherLen - vlanLen)
	o.busyPoll = o.BusyPoll > 0
	if o.splits = o.prog.mode == Generic; o.splits {
		o.split.pool = newPool()
	}
	o.datapath = "afxdp-generic"
	switch {
	case o.Port.queues[0].zeroCopy:
		o.datapath = "afxdp-zerocopy"
	case o.prog.mode == Native:
		o.datapath = "afxdp-native"
	}
	a := o.link.Attrs()
	o.net.state.Store(&state{info: driver.Info{Name: a.Name, Datapath: o.datapath,
		Queues: o.count, Runs: o.splits && o.multi}})
	o.net.own = o.prog.own
	o.net.refresh()
	o.net.readRoutes()
	s := o.net.state.Load()
	if s.gone {
		return ErrNoInterface
	}
	if len(s.addrs) == 0 {
		if s.info.Note != "" {
			return errors.New(s.info.Note)
		}
		return noAddress(a.Name)
	}
	return nil
}

func (o *opener) makeEvent() error {
	if err := o.sleeper.Open(); err != nil {
		return err
	}
	o.polls = append(o.polls, o.sleeper.Event())
	for _, q := range o.Port.queues {
		o.polls = append(o.polls, unix.PollFd{Fd: int32(q.fd), Events: unix.POLLIN})
	}
	return nil
}
