package roce

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

const (
	// madsPerTurn bounds the management packets that a turn sends and the events that it hands up.
	madsPerTurn = 16
	// maxLearnt is how many peers' ways back are remembered; a further one takes the place of the oldest.
	maxLearnt = 1024
	// madSourcePort: management packets come from one UDP port, below those of QPs' flows.
	madSourcePort = 0xc000
)

// gsi is QP1, the general services interface: it carries the connection manager's messages as datagrams of 256 bytes
// (IBA 13.5.1) and belongs to the shard's owner like the engine beside it. It needs no queue pair of the
// engine's: what comes in is handled at once, and what goes out is written straight into a transmit buffer.
type gsi struct {
	dev   *Device
	cm    *cm.CM
	psn   bth.PSN
	ways  map[bth.GIDPair]*wayEntry
	learn [maxLearnt]*wayEntry // ring of the ways that nobody held when they were learnt or let go
	next  int

	conns     map[cm.CommID]*dialogue
	listeners map[cm.ListenerID]*acceptQueue
	broken    []*qp.QP // went to ERR since the last turn
	ctr       gsiCounters
}

// gsiCounters count what QP1 saw.
type gsiCounters struct {
	received, sent, refused, noWay uint64
}

type wayEntry struct {
	bth.GIDPair
	path   Path
	slot   int     // in the ring, -1: not there
	held   int     // dialogues that need it; with none it may be forgotten
	looked int     // of them, those that looked it up: then the device keeps it up to date
	mac    bth.MAC // else: as the latest packet came
	vlan   uint16
}

func newGSI(d *Device, mac bth.MAC, random func() uint64) (*gsi, error) {
	m, err := cm.New(cm.Config{GUID: guidOf(mac), Rand: random})
	if err != nil {
		return nil, err
	}
	g := &gsi{
		dev: d, cm: m, psn: PSN(random() & 0xffffff), ways: map[bth.GIDPair]*wayEntry{},
		conns: map[cm.CommID]*dialogue{}, listeners: map[cm.ListenerID]*acceptQueue{},
	}
	d.eng.SetErrHook(func(q *qp.QP) { g.broken = append(g.broken, q) })
	return g, nil
}

// guidOf makes a channel adapter's GUID of a MAC address (EUI-64, as rxe does).
func guidOf(m bth.MAC) cm.GUID {
	return cm.GUID(binary.BigEndian.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}))
}

// handle takes in a packet to QP1. What is no management datagram is dropped and counted.
func (g *gsi) handle(now qp.Time, p *bth.Packet) {
	g.ctr.received++
	d := p.DETH()
	if p.Info.Transport != bth.UD || !p.Info.Start || !p.Info.End || d.QKey() != bth.QKeyGSI || !p.BTH.PKey().Matches(DefaultPKey) {
		g.ctr.refused++
		return
	}
	g.mend(now) // what broke before this message came is not its doing
	g.learnWay(p)
	if err := g.cm.HandleMAD(cm.Time(now), cm.Addr{GIDPair: bth.GIDPair{Local: p.Dst, Remote: p.Src}, QPN: d.SrcQP(), PKey: DefaultPKey}, p.Payload); err != nil {
		g.ctr.refused++
	}
	g.dispatch(now)
}

// learnWay remembers how to answer: along the way that the packet came, without any look-up. A way that somebody has
// looked up is not learnt anew from what anybody may have sent.
func (g *gsi) learnWay(p *bth.Packet) {
	e := g.way(bth.GIDPair{Local: p.Dst, Remote: p.Src})
	if e.held == 0 && e.slot < 0 {
		g.remember(e)
	}
	vlan := uint16(0)
	if p.HasVLAN {
		vlan = p.VLAN
	}
	if e.looked > 0 || (e.path.Valid() && e.mac == p.SrcMAC && e.vlan == vlan) {
		return
	}
	e.mac, e.vlan = p.SrcMAC, vlan
	e.path = frame.NewPath(&frame.Address{
		SrcMAC: g.dev.Info().MAC, DstMAC: e.mac, VLAN: vlan, Src: e.Local, Dst: e.Remote, SrcPort: madSourcePort, HopLimit: defaultHopLimit,
	})
}

// way is the entry for a way, made if need be.
func (g *gsi) way(gids bth.GIDPair) *wayEntry {
	e := g.ways[gids]
	if e == nil {
		e = &wayEntry{GIDPair: gids, slot: -1}
		g.ways[gids] = e
	}
	return e
}

// remember puts a way that nobody holds into the ring, in the place of the oldest.
func (g *gsi) remember(e *wayEntry) {
	if e.slot >= 0 {
		g.learn[e.slot] = nil
	}
	if old := g.learn[g.next]; old != nil {
		old.slot = -1
		if old.held == 0 {
			delete(g.ways, old.GIDPair)
		}
	}
	e.slot = g.next
	g.learn[g.next] = e
	g.next = (g.next + 1) % maxLearnt
}

// holdWay keeps the way of a dialogue until releaseWay. path is what was looked up, nil for a dialogue that answers along
// the way that the peer's packet came.
func (g *gsi) holdWay(d *dialogue, path *Path) {
	e := g.way(d.gids)
	if !d.held {
		d.held = true
		e.held++
	}
	if path == nil {
		return
	}
	e.path = *path
	if !d.looked {
		d.looked = true
		e.looked++
	}
}

// releaseWay lets go of it. It is still remembered for a while: a message may have to be repeated.
func (g *gsi) releaseWay(d *dialogue) {
	e := g.ways[d.gids]
	if e == nil || !d.held {
		return
	}
	if d.looked {
		if e.looked--; e.looked == 0 {
			e.mac = bth.MAC{} // to be learnt again
		}
	}
	d.held, d.looked = false, false
	if e.held--; e.held == 0 {
		g.remember(e)
	}
}

// lookedUp lists the paths that the device keeps up to date.
func (g *gsi) lookedUp() (list []Path) {
	for _, e := range g.ways {
		if e.looked > 0 {
			list = append(list, e.path)
		}
	}
	return list
}

// repath replaces a path unless it has changed meanwhile.
func (g *gsi) repath(old, fresh *Path) {
	if e := g.ways[old.GIDs()]; e != nil && e.path == *old {
		e.path = *fresh
	}
}

// mend ends the connections of QPs that went to ERR.
func (g *gsi) mend(now qp.Time) int {
	if len(g.broken) == 0 {
		return 0
	}
	for i, b := range g.broken {
		if q, _ := b.Owner().(*QP); q != nil && q.talk != nil && q.talk.conn != nil {
			q.talk.conn.ended(now, ErrConnLost)
		}
		g.broken[i] = nil
	}
	g.broken = g.broken[:0]
	g.dispatch(now)
	return 1
}

// timeout does what is due.
func (g *gsi) timeout(now qp.Time) int {
	t, ok := g.cm.NextTimeout()
	if !ok || t > cm.Time(now) {
		return 0
	}
	g.cm.HandleTimeout(cm.Time(now))
	g.dispatch(now)
	return 1
}

// transmit sends what the connection manager has to say, a frame at a time: it is never the hot path.
func (g *gsi) transmit(now qp.Time) int {
	n := 0
	for n < madsPerTurn && g.cm.HasTransmit() {
		if !g.sendOne(now) {
			break
		}
		n++
	}
	return n
}

func (g *gsi) sendOne(now qp.Time) bool {
	b := g.dev.loop.Buffer()
	if b == nil {
		return false
	}
	// The MAD is polled to where it stays in a packet over IPv6 with a VLAN tag, and moved if the headers are shorter.
	var mad [cm.MADLen]byte
	to, ok := g.cm.PollTransmit(cm.Time(now), mad[:])
	if !ok {
		return false
	}
	e := g.ways[to.GIDPair]
	if e == nil {
		g.ctr.noWay++ // the peer will ask again, or be asked
		return true
	}
	netLen := e.path.Put(b)
	rest := b[netLen:]
	info := bth.UDSendOnly.Info()
	// AckReq is set as the kernel's rxe does; nothing answers it on UD.
	bth.PutBTH(rest, &bth.BTHFields{Opcode: bth.UDSendOnly, AckReq: true, PKey: to.PKey, DestQP: to.QPN, PSN: g.psn})
	bth.PutDETH(rest[info.DETH:], bth.QKeyGSI, bth.QPNGSI)
	copy(rest[info.HeaderLen:], mad[:])
	g.psn = g.psn.Next()
	g.dev.loop.Send(netLen+int(info.HeaderLen)+cm.MADLen, netLen)
	g.ctr.sent++
	return true
}
