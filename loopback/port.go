package loopback

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/wire"
)

// States of a buffer. Only the current holder of a buffer changes its state. The rings order the
// transitions between goroutines.
const (
	bufFree = iota // in the Port's free list
	bufHeld        // with the owner, between Alloc and Send or Free
	bufWire        // in flight
	bufRead        // with the receiver, between Receive and Release
	bufBack        // released, on its way back
)

// Offsets in a slot: its state, then the frame. The frame starts at offset 2, so that the IP header
// is aligned and the state does not need a separate cache line.
const (
	stateAt = 0
	frameAt = 2
)

// poison is the value with which Config.Poison overwrites returned buffers.
const poison = 0xdb

// Port is a port of a Link. It implements driver.Port, driver.Network, driver.Groups and
// driver.Backlogger.
type Port struct {
	link  *Link
	index int
	name  string
	mac   bth.MAC

	// The send side: bufs slots of stride bytes.
	slab     []byte
	bufs     int
	stride   int
	maxFrame int
	free     []uint32
	held     int // number of buffers with the owner
	maxHeld  int

	output wire.Output  // see Link.SetBandwidth
	out    []*direction // by receiver; nil at index and at Ports without a connection
	in     []*direction // by sender; as out

	delayed dueQueue // the receive side: frames that arrived but are not due
	timed   bool     // some frames in flight have, or had, a due time
	nextIn  int      // where Receive starts to poll
	idle    bool     // virtual time: the rings from all senders are empty
	egress  *egress  // the switch's output to this Port; nil = unlimited

	mtu    atomic.Int64
	up     atomic.Bool
	closed atomic.Bool
	stats  sharedStats
	net    network
	sleep  sleeper
}

// direction carries frames from one Port to another: it has a ring of frames, and a ring of buffers
// in the opposite direction.
type direction struct {
	from, to *Port
	frames   ring[arrival]
	back     ring[uint32]
	inFlight int // of the sender: frames sent minus buffers returned
	queue    int // limit of inFlight

	dice    dice // of the sender
	newPlan atomic.Pointer[Plan]
	filter  atomic.Pointer[Filter]
	faults  sharedFaults
}

func newPort(l *Link, index int, c *Config) *Port {
	p := &Port{link: l, index: index, name: fmt.Sprintf("mem%d", index), mac: portMAC(index),
		maxHeld: c.TxBufs}
	p.maxFrame = headerLen + vlanLen + c.MTU
	p.stride = (frameAt + p.maxFrame + cacheLine - 1) &^ (cacheLine - 1)
	inFlight := 0
	for i := range c.Ports {
		if c.connects(index, i) {
			inFlight += c.Queue
		}
	}
	n := c.TxBufs + inFlight
	p.bufs = n
	p.slab = make([]byte, n*p.stride)
	p.free = make([]uint32, n)
	for i := range p.free {
		p.free[i] = uint32(n - 1 - i)
	}
	p.out = make([]*direction, c.Ports)
	p.in = make([]*direction, c.Ports)
	p.delayed.init(inFlight)
	p.mtu.Store(int64(c.MTU))
	p.up.Store(true)
	p.net.init(p)
	p.sleep.init()
	return p
}

func connect(from, to *Port, c *Config) {
	d := &direction{from: from, to: to, queue: c.Queue}
	d.frames.init(c.Queue)
	d.back.init(c.Queue)
	d.dice = newDice(c.Plan, c.Seed, streamOf(from.index, to.index))
	from.out[to.index] = d
	to.in[from.index] = d
}

// streamOf numbers the direction between two Ports, to draw its faults. The numbers of the first 16
// Ports do not depend on MaxPorts, so that scenarios with few Ports keep their faults.
func streamOf(from, to int) int {
	const block = 16
	return ((from/block)*(MaxPorts/block)+to/block)*block*block + from%block*block + to%block
}

// Info implements driver.Port.
func (p *Port) Info() driver.Info {
	return driver.Info{
		Name: p.name, Datapath: "memory", MAC: p.mac, MTU: int(p.mtu.Load()),
		MaxFrame: p.maxFrame, Up: p.up.Load() && !p.closed.Load(), Queues: 1,
	}
}

func (p *Port) bytes(buf uint32) []byte {
	at := int(buf)*p.stride + frameAt
	return p.slab[at : at+p.maxFrame : at+p.maxFrame]
}

// state returns the state of a buffer.
func (p *Port) state(buf uint32) *uint8 { return &p.slab[int(buf)*p.stride+stateAt] }

// transition changes the state of a buffer. It panics if the state is not the expected one.
func (p *Port) transition(buf uint32, from, to uint8) {
	if int(buf) >= p.bufs || *p.state(buf) != from {
		panic(fmt.Sprintf("loopback: %s: buffer %d was returned by a caller that does not hold it",
			p.name, buf))
	}
	*p.state(buf) = to
	if p.link.poison && (to == bufFree || to == bufBack) {
		b := p.bytes(buf)
		for i := range b {
			b[i] = poison
		}
	}
}

// Alloc implements driver.Port.
func (p *Port) Alloc(bufs []driver.Buf) int {
	if p.closed.Load() {
		return 0
	}
	p.collect() // first, so that recently used buffers, which are in the caches, are used again
	n := min(len(bufs), p.maxHeld-p.held, len(p.free))
	for i := range n {
		buf := p.take()
		*p.state(buf) = bufHeld
		bufs[i] = driver.Buf{B: p.bytes(buf), Token: uint64(buf)}
	}
	p.held += n
	return n
}

func (p *Port) take() uint32 {
	buf := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return buf
}

// collect takes back the buffers that receivers have released.
func (p *Port) collect() {
	for _, d := range p.out {
		if d != nil {
			d.collect()
		}
	}
}

func (d *direction) collect() {
	for {
		buf, ok := d.back.take()
		if !ok {
			break
		}
		*d.from.state(buf) = bufFree
		d.from.free = append(d.from.free, buf)
		d.inFlight--
	}
	d.back.done()
}

// Free implements driver.Port.
func (p *Port) Free(bufs []driver.Buf) {
	for i := range bufs {
		p.discard(uint32(bufs[i].Token))
	}
}

func (p *Port) discard(buf uint32) {
	p.transition(buf, bufHeld, bufFree)
	p.free = append(p.free, buf)
	p.held--
}

// Send implements driver.Port. Frames that the plan loses count as sent. Frames that are too long
// or too short do not, nor do frames sent while the link is down. After Close it returns ErrClosed.
func (p *Port) Send(bufs []driver.Buf) (int, error) {
	if p.closed.Load() {
		p.Free(bufs)
		return 0, ErrClosed
	}
	limit, up := headerLen+int(p.mtu.Load()), p.up.Load()
	sent, bytes := 0, 0
	for i := range bufs {
		buf, n := uint32(bufs[i].Token), len(bufs[i].B)
		if !up || n < headerLen || n > p.maxFrame || n > limit+tagLen(bufs[i].B) {
			p.discard(buf)
			continue
		}
		p.forward(buf, n)
		sent++
		bytes += n
	}
	for _, d := range p.out {
		if d != nil {
			d.publish()
		}
	}
	p.stats.sent(sent, bytes, len(bufs)-sent)
	return sent, nil
}

// tagLen returns how much a VLAN tag adds to the largest frame.
func tagLen(f []byte) int {
	if binary.BigEndian.Uint16(f[12:]) == 0x8100 {
		return vlanLen
	}
	return 0
}

// forward acts as a switch: it sends a frame to the Port with the destination MAC, or to all others
// if that is a group address.
func (p *Port) forward(buf uint32, n int) {
	b, at := p.bytes(buf)[:n], p.departure(n)
	if b[0]&1 == 0 {
		if to := portOf(b); to >= 0 && to < len(p.out) && p.out[to] != nil {
			p.out[to].send(buf, b, at)
			return
		}
		p.discard(buf) // no Port has the address
		return
	}
	for _, d := range p.out {
		if d != nil && d.hasSpace() {
			d.send(p.copyOf(b), b, at)
		}
	}
	p.discard(buf)
}

// copyOf returns a copy in state bufHeld. The Port has a buffer for every frame that may be in
// flight, so a buffer is free if hasSpace returned true.
func (p *Port) copyOf(b []byte) uint32 {
	if len(p.free) == 0 {
		p.collect()
	}
	buf := p.take()
	*p.state(buf) = bufHeld
	p.held++
	copy(p.bytes(buf), b)
	return buf
}

// hasSpace reports whether another frame may be in flight. If not, it counts the frame as lost.
func (d *direction) hasSpace() bool {
	if d.inFlight < d.queue {
		return true
	}
	if d.collect(); d.inFlight < d.queue {
		return true
	}
	d.dice.counts.Overflow++
	d.to.stats.rxDropped.Add(1)
	return false
}

// send sends a frame, which leaves the Port at a time (0: now), according to the filter and the
// plan.
func (d *direction) send(buf uint32, b []byte, at int64) {
	f := d.fate(b, at)
	if d.from.link.traced {
		d.note(&f, b)
	}
	switch {
	case f.lost || d.to.closed.Load() || !d.to.up.Load() || !d.hasSpace():
		d.from.discard(buf)
		return
	case f.corrupt:
		d.dice.corrupt(d.from.bytes(buf)[:len(b)])
	}
	d.launch(buf, len(b), f.due)
	if f.dup && d.hasSpace() {
		d.launch(d.from.copyOf(d.from.bytes(buf)[:len(b)]), len(b), f.dupDue)
	}
}

func (d *direction) launch(buf uint32, n int, due int64) {
	d.from.transition(buf, bufHeld, bufWire)
	d.from.held--
	d.inFlight++
	if d.from.link.virtual {
		d.to.idle = false
	}
	if due == 0 && d.to.egress != nil {
		due = d.from.link.now // a queue needs the time of arrival
	}
	if !d.frames.stage(arrival{due: due, buf: buf, n: uint32(n), from: uint32(d.from.index)}) {
		panic("loopback: a ring with space for all frames in flight is full")
	}
}

func (d *direction) fate(b []byte, at int64) (f fate) {
	if p := d.newPlan.Load(); p != nil && d.newPlan.CompareAndSwap(p, nil) {
		d.dice.set(*p)
	}
	filter := d.filter.Load()
	if filter == nil && d.dice.idle() {
		d.dice.counts.Frames++
		return fate{due: at}
	}
	leaves := at
	if at == 0 {
		leaves = d.from.link.clock()
	}
	if filter != nil {
		f = d.dice.apply((*filter)(b), leaves, len(b))
	} else {
		f = d.dice.draw(leaves, len(b))
	}
	f.due, f.dupDue = max(f.due, at), max(f.dupDue, at)
	return f
}

func (d *direction) note(f *fate, b []byte) {
	what := 1
	for i, is := range [...]bool{f.lost, f.corrupt, f.dup, f.due != 0} {
		if is {
			what |= 2 << i
		}
	}
	d.from.link.note(what, d.from.index, d.to.index, b)
}

// publish makes the launched frames visible to the receiver and wakes it if it sleeps.
func (d *direction) publish() {
	if d.frames.publish() {
		d.to.sleep.wake()
	}
	if d.dice.counts.Frames != d.faults.v[0].Load() {
		d.faults.store(&d.dice.counts)
	}
}
