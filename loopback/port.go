package loopback

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
)

// Who holds a buffer. The holder alone changes it; the rings order the
// hand-over.
const (
	bufFree = iota // the Port's free list
	bufHeld        // the Port's owner, between Alloc and Send or Free
	bufWire        // under way
	bufRead        // the receiver, between Receive and Release
	bufBack        // on its way back
)

// A slot holds the holder's mark, then, 2 bytes in, the frame: so the IP
// header is aligned, and the mark costs no cache line of its own.
const (
	markAt  = 0
	frameAt = 2
)

// poison fills released buffers if Config.Poison asks for it.
const poison = 0xdb

// Port is one end of a Link. It implements driver.Port and driver.Network.
type Port struct {
	link  *Link
	index int
	name  string
	mac   bth.MAC

	// The transmit side: bufs slots of stride bytes.
	slab     []byte
	bufs     int
	stride   int
	maxFrame int
	free     []uint32
	held     int // buffers in the hands of the owner
	maxHeld  int

	out []*direction // by receiver; nil at index
	in  []*direction // by sender; nil at index

	late  dueQueue // the receive side: frames that came but are not due
	timed bool     // some frame under way has, or had, an instant
	turn  int      // where Receive begins to look

	mtu    atomic.Int64
	up     atomic.Bool
	closed atomic.Bool
	stats  sharedStats
	net    network
	sleep  sleeper
}

// direction is the wire from one Port to another: a ring of frames there, a
// ring of empty buffers back.
type direction struct {
	from, to *Port
	frames   ring[arrival]
	back     ring[uint32]
	underway int // sender's: frames sent minus buffers back
	queue    int // bound of underway

	dice    dice // sender's
	newPlan atomic.Pointer[Plan]
	filter  atomic.Pointer[Filter]
	faults  sharedFaults
}

func newPort(l *Link, index int, c *Config) *Port {
	p := &Port{link: l, index: index, name: fmt.Sprintf("mem%d", index), mac: portMAC(index), maxHeld: c.TxBufs}
	p.maxFrame = headerLen + vlanLen + c.MTU
	p.stride = (frameAt + p.maxFrame + cacheLine - 1) &^ (cacheLine - 1)
	n := c.TxBufs + c.Queue*(c.Ports-1)
	p.bufs = n
	p.slab = make([]byte, n*p.stride)
	p.free = make([]uint32, n)
	for i := range p.free {
		p.free[i] = uint32(n - 1 - i)
	}
	p.out = make([]*direction, c.Ports)
	p.in = make([]*direction, c.Ports)
	p.late.init(c.Queue * (c.Ports - 1))
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
	d.dice = newDice(c.Plan, c.Seed, from.index*MaxPorts+to.index)
	from.out[to.index] = d
	to.in[from.index] = d
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

// mark is who holds the buffer.
func (p *Port) mark(buf uint32) *uint8 { return &p.slab[int(buf)*p.stride+markAt] }

// claim moves a buffer of this Port from one holder to the next.
func (p *Port) claim(buf uint32, from, to uint8) {
	if int(buf) >= p.bufs || *p.mark(buf) != from {
		panic(fmt.Sprintf("loopback: %s: buffer %d given back by one who does not hold it", p.name, buf))
	}
	*p.mark(buf) = to
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
	p.collect() // first, so that the buffers used last are used again: they are in the caches, all of them together are not
	n := min(len(bufs), p.maxHeld-p.held, len(p.free))
	for i := range n {
		buf := p.take()
		*p.mark(buf) = bufHeld
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
		*d.from.mark(buf) = bufFree
		d.from.free = append(d.from.free, buf)
		d.underway--
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
	p.claim(buf, bufHeld, bufFree)
	p.free = append(p.free, buf)
	p.held--
}

// Send implements driver.Port. A frame that the plan loses was handed to the
// wire; one that is too long, too short, or sent while the link is down, was
// not. After Close it returns ErrClosed.
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

// tagLen is the room that a VLAN tag adds to the MTU.
func tagLen(f []byte) int {
	if binary.BigEndian.Uint16(f[12:]) == 0x8100 {
		return vlanLen
	}
	return 0
}

// forward does what a switch does: to the Port with the destination MAC, to
// all others if it is a group address.
func (p *Port) forward(buf uint32, n int) {
	b := p.bytes(buf)[:n]
	if b[0]&1 == 0 {
		if to := portOf(b); to >= 0 && to < len(p.out) && to != p.index {
			p.out[to].send(buf, b)
			return
		}
		p.discard(buf) // nobody's address
		return
	}
	for _, d := range p.out {
		if d != nil && d.room() {
			d.send(p.copyOf(b), b)
		}
	}
	p.discard(buf)
}

// copyOf makes a copy that the owner seems to hold. The pool has a buffer for
// every frame that may be under way, so if there is room there is a buffer.
func (p *Port) copyOf(b []byte) uint32 {
	if len(p.free) == 0 {
		p.collect()
	}
	buf := p.take()
	*p.mark(buf) = bufHeld
	p.held++
	copy(p.bytes(buf), b)
	return buf
}

// room reports whether one more frame may go under way; if not, it counts the
// frame that is lost for it.
func (d *direction) room() bool {
	if d.underway < d.queue {
		return true
	}
	if d.collect(); d.underway < d.queue {
		return true
	}
	d.dice.counts.Overflow++
	d.to.stats.rxDropped.Add(1)
	return false
}

// send puts a frame on the wire as the filter and the plan say.
func (d *direction) send(buf uint32, b []byte) {
	f := d.fate(b)
	if d.from.link.virtual {
		d.note(&f, b)
	}
	switch {
	case f.lost || d.to.closed.Load() || !d.to.up.Load() || !d.room():
		d.from.discard(buf)
		return
	case f.corrupt:
		d.dice.corrupt(d.from.bytes(buf)[:len(b)])
	}
	d.launch(buf, len(b), f.due)
	if f.dup && d.room() {
		d.launch(d.from.copyOf(d.from.bytes(buf)[:len(b)]), len(b), f.dupDue)
	}
}

func (d *direction) launch(buf uint32, n int, due int64) {
	d.from.claim(buf, bufHeld, bufWire)
	d.from.held--
	d.underway++
	if !d.frames.stage(arrival{due: due, buf: buf, n: uint32(n), from: uint32(d.from.index)}) {
		panic("loopback: a ring as large as its bound is full")
	}
}

func (d *direction) fate(b []byte) (f fate) {
	if p := d.newPlan.Load(); p != nil && d.newPlan.CompareAndSwap(p, nil) {
		d.dice.set(*p)
	}
	filter := d.filter.Load()
	switch {
	case filter != nil:
		return d.dice.obey((*filter)(b), d.from.link.clock(), len(b))
	case d.dice.idle():
		d.dice.counts.Frames++
		return f
	}
	return d.dice.draw(d.from.link.clock(), len(b))
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

// publish shows the receiver what was launched, and wakes it if it sleeps.
func (d *direction) publish() {
	if d.frames.publish() {
		d.to.sleep.nudge()
	}
	if d.dice.counts.Frames != d.faults.v[0].Load() {
		d.faults.store(&d.dice.counts)
	}
}
