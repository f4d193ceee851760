package roce

import (
	"encoding/binary"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/internal/inside"
	"github.com/gorxe/gorxe/internal/limit"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
)

const (
	// madsPerStep is the maximum number of MADs sent in one step.
	madsPerStep = 16
	// madSourcePort is the UDP source port of all MADs.
	madSourcePort = 0xc000
)

// gsi is QP1, the general services interface. It carries the messages of the connection manager as
// MADs of 256 bytes (IBA 13.5.1). All fields and methods belong to the owner of the loop. QP1 is
// not a QP of the engine: incoming MADs are handled at once, and outgoing ones are written directly
// into a transmit buffer.
type gsi struct {
	dev   *Device
	cm    *cm.CM
	psn   bth.PSN
	paths pathCache

	ids       map[cm.CommID]*cmID
	listeners map[cm.ListenerID]*acceptQueue
	handlers  map[cm.ListenerID]inside.CMHandler // of other listeners; see inside.HandleListener
	failed    []*qp.QP                           // went to ERR since the last step
	alive     keepAlives
	wills     wills
	ctr       gsiCounters
}

// gsiCounters are the counters of QP1.
type gsiCounters struct {
	received, sent, refused, noPath, badPKey, badQKey uint64
}

// gsiRate limits the MADs that belong to no connection. To answer one takes about 1 us, so the
// total uses about 2 % of the loop's time. Honest peers repeat a dropped request after a second or
// more.
var gsiRate = limit.RateConfig{
	PerPrefix: limit.Budget{PerSecond: 10_000, Burst: 10_000},
	Total:     limit.Budget{PerSecond: 20_000, Burst: 20_000},
}

func newGSI(d *Device, mac bth.MAC, ids cm.IDRange, peers limit.Access) (*gsi, error) {
	m, err := cm.New(cm.Config{GUID: guidOf(mac), Rand: d.rand, IDs: ids, PKeys: d.pkeys,
		Peers: peers, Rate: gsiRate})
	if err != nil {
		return nil, err
	}
	g := &gsi{
		dev: d, cm: m, psn: PSN(d.rand() & 0xffffff), paths: newPathCache(),
		ids: map[cm.CommID]*cmID{}, listeners: map[cm.ListenerID]*acceptQueue{},
		handlers: map[cm.ListenerID]inside.CMHandler{},
	}
	if s := &d.service; s.member != nil && s.forward == nil {
		m.SetEstablishedHook(g.wills.note)
	}
	d.eng.SetErrHook(func(q *qp.QP) { g.failed = append(g.failed, q) })
	return g, nil
}

// guidOf returns the GUID of a channel adapter with a MAC address (EUI-64, as rxe does).
func guidOf(m bth.MAC) cm.GUID {
	return cm.GUID(binary.BigEndian.Uint64([]byte{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4],
		m[5]}))
}

// handle handles a packet to QP1. It drops and counts packets that are not valid MADs. QP1 belongs
// to all partitions of the device (IBA 9.6.1.1).
func (g *gsi) handle(now qp.Time, p *bth.Packet) {
	g.ctr.received++
	if p.Info.Transport != bth.UD || !p.Info.Start || !p.Info.End {
		g.ctr.refused++
		return
	}
	if f := g.dev.service.forward; f != nil && f(p) {
		return // for another program
	}
	key, ok := g.dev.pkeys.matching(p.BTH.PKey())
	if !ok {
		g.ctr.badPKey++
		return
	}
	d := p.DETH()
	if d.QKey() != bth.QKeyGSI {
		g.ctr.badQKey++
		return
	}
	g.endFailed(now) // QPs that failed before this message came
	from := cm.Addr{
		GIDPair: bth.GIDPair{Local: p.Dst, Remote: p.Src}, QPN: d.SrcQP(), PKey: key,
	}
	if err := g.cm.HandleMAD(cm.Time(now), from, p.Payload); err != nil {
		g.ctr.refused++
	}
	if g.cm.Responded() { // a dropped MAD must not use memory
		g.paths.learn(p, g.dev.Info().MAC)
	}
	g.dispatch(now)
}

// endFailed ends the connections of QPs that went to ERR. It returns the work done.
func (g *gsi) endFailed(now qp.Time) int {
	if len(g.failed) == 0 {
		return 0
	}
	for i, f := range g.failed {
		if q, _ := f.Outer().(*QP); q != nil {
			g.alive.forget(q)
			if q.cmID != nil && q.cmID.conn != nil {
				q.cmID.conn.ended(now, q.lost())
			}
		}
		g.failed[i] = nil
	}
	g.failed = g.failed[:0]
	g.dispatch(now)
	return 1
}

// handleTimeout runs the connection manager's timers. It returns the work done.
func (g *gsi) handleTimeout(now qp.Time) int {
	t, ok := g.cm.NextTimeout()
	if !ok || t > cm.Time(now) {
		return 0
	}
	g.cm.HandleTimeout(cm.Time(now))
	g.dispatch(now)
	return 1
}

// transmit sends pending MADs, one frame at a time, and returns their number.
func (g *gsi) transmit(now qp.Time) int {
	n := 0
	for n < madsPerStep && g.cm.HasTransmit() && g.transmitOne(now) {
		n++
	}
	return n
}

// transmitOne sends one MAD. It returns false if there was none, or no transmit buffer.
func (g *gsi) transmitOne(now qp.Time) bool {
	b := g.dev.loop.Buffer()
	if b == nil {
		return false
	}
	var mad [cm.MADLen]byte
	to, ok := g.cm.PollTransmit(cm.Time(now), mad[:])
	if !ok {
		return false
	}
	path := g.paths.find(to.GIDPair)
	if path == nil {
		g.ctr.noPath++ // one of the two sides will retransmit
		return true
	}
	n, netLen := g.put(b, path, &to, &mad)
	g.dev.loop.Send(bth.QPNGSI, n, netLen)
	g.ctr.sent++
	return true
}

// put writes a packet with a MAD, without ICRC. It returns the length of the packet and that of its
// headers before the BTH.
func (g *gsi) put(b []byte, path *Path, to *cm.Addr, mad *[cm.MADLen]byte) (n, netLen int) {
	netLen = path.Put(b)
	rest := b[netLen:]
	info := bth.UDSendOnly.Info()
	// The kernel's rxe sets AckReq, too. It has no effect on UD.
	bth.PutBTH(rest, &bth.BTHFields{
		Opcode: bth.UDSendOnly, AckReq: true, PKey: to.PKey, DestQP: to.QPN, PSN: g.psn,
	})
	bth.PutDETH(rest[info.DETH:], bth.QKeyGSI, bth.QPNGSI)
	copy(rest[info.HeaderLen:], mad[:])
	g.psn = g.psn.Next()
	return netLen + int(info.HeaderLen) + cm.MADLen, netLen
}
