package cm

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/bth/bthtest"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/roce/cm"
)

const (
	maxConns    = 12
	maxHalfOpen = 8
	backlog     = 6
	port        = 7174
)

var (
	self  = bth.GIDFromIPv4([4]byte{10, 0, 0, 1})
	hosts = [3]bth.GID{bth.GIDFromIPv4([4]byte{10, 0, 0, 2}), bth.GIDFromIPv4([4]byte{10, 0, 0, 3}),
		self}
)

var services = [3]cm.ServiceID{cm.TCPService(port), cm.UDPService(port), 1}

// FuzzMAD plays the tape to a CM.
func FuzzMAD(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, tape []byte) {
		p := newPlay(t, tape)
		for range 200 {
			if len(p.tape) == 0 {
				break
			}
			p.step()
			p.look()
		}
		p.finish()
	})
}

// seeds are captured MADs, and random tapes that reach every kind of step.
func seeds(f *testing.F) {
	d, p := new(frame.Decoder), new(bth.Packet)
	for _, name := range bthtest.Names(f) {
		var tape []byte
		for _, b := range bthtest.Frames(f, name) {
			if d.Decode(b, p) == frame.ReasonOK && p.BTH.DestQP() == bth.QPNGSI {
				tape = append(append(tape, stepRaw, 0, byte(len(p.Payload)-1)), p.Payload...)
			}
		}
		if len(tape) > 0 {
			f.Add(tape)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		tape := make([]byte, 40+r.IntN(900))
		for i := range tape {
			tape[i] = byte(r.Uint32())
		}
		f.Add(tape)
	}
}

// play is a CM, its user and its peers, all controlled by the tape.
type play struct {
	t    *testing.T
	m    *cm.CM
	tape []byte
	now  cm.Time
	seen []exchange                 // what the peers saw recently
	ids  []cm.CommID                // the user's recent IDs, including closed ones
	hold map[cm.CommID]cm.EventKind // the last event that the user got for each ID
	sent uint64

	listeners [len(services)]cm.ListenerID
}

// exchange is what a peer must know to be believed.
type exchange struct {
	peer          bth.GID
	local, remote cm.CommID // as the CM sees them
	tid           uint64
}

// recent is the number of exchanges and IDs remembered.
const recent = 8

func push[T any](s []T, v T) []T {
	if len(s) == recent {
		s = append(s[:0], s[1:]...)
	}
	return append(s, v)
}

func newPlay(t *testing.T, tape []byte) *play {
	m, err := cm.New(cm.Config{GUID: 1, Rand: rand.New(rand.NewPCG(3, 4)).Uint64,
		MaxConns: maxConns, MaxHalfOpen: maxHalfOpen})
	if err != nil {
		t.Fatal(err)
	}
	p := &play{t: t, m: m, tape: tape, hold: map[cm.CommID]cm.EventKind{}}
	for i := range services {
		p.listen(i)
	}
	return p
}

func (p *play) listen(i int) {
	id, err := p.m.Listen(cm.ListenParams{Service: services[i], Backlog: backlog})
	if err != nil {
		p.t.Fatal(err)
	}
	p.listeners[i] = id
}

func (p *play) draw() byte {
	if len(p.tape) == 0 {
		return 0
	}
	b := p.tape[0]
	p.tape = p.tape[1:]
	return b
}

// of draws a number below n.
func (p *play) of(n int) int { return int(p.draw()) % n }

func (p *play) take(n int) []byte {
	n = min(n, len(p.tape))
	b := p.tape[:n]
	p.tape = p.tape[n:]
	return b
}

const (
	stepRaw = iota
	stepMessage
	stepREQ
	stepTime
	stepUser
	stepCall
	stepAlong
	numSteps
)

func (p *play) step() {
	switch p.of(numSteps) {
	case stepRaw:
		from := hosts[p.of(len(hosts))]
		p.feed(from, p.take(int(p.draw())+1))
	case stepMessage:
		p.message()
	case stepREQ:
		p.request()
	case stepTime:
		p.pass()
	case stepUser:
		p.user()
	case stepCall:
		p.call()
	case stepAlong:
		p.along()
	}
}

// along advances a connection by one regular step of the user or the peer.
func (p *play) along() {
	if len(p.ids) == 0 {
		return
	}
	id := p.ids[len(p.ids)-1-p.of(len(p.ids))]
	switch p.m.State(id) {
	case cm.StateREQRcvd, cm.StateMRAREQSent:
		_ = p.m.Accept(p.now, id, &cm.AcceptParams{QPN: 3})
		return
	case cm.StateREPRcvd, cm.StateMRAREPSent:
		_ = p.m.Ready(p.now, id, nil)
		return
	}
	var x exchange
	for _, y := range p.seen {
		if y.local == id {
			x = y
		}
	}
	if x.local == 0 {
		return
	}
	var m cm.MAD
	switch p.m.State(id) {
	case cm.StateREQSent, cm.StateMRAREQRcvd:
		r := cm.REP{LocalID: cm.CommID(p.of(8) + 1), RemoteID: id, QPN: bth.QPN(2 + p.of(8))}
		r.Encode(&m, x.tid)
	case cm.StateREPSent, cm.StateMRAREPRcvd:
		r := cm.RTU{LocalID: x.remote, RemoteID: id}
		r.Encode(&m, x.tid)
	case cm.StateEstablished:
		r := cm.DREQ{LocalID: x.remote, RemoteID: id, RemoteQPN: 3}
		r.Encode(&m, uint64(p.draw()))
	case cm.StateDREQSent:
		r := cm.DREP{LocalID: x.remote, RemoteID: id}
		r.Encode(&m, x.tid)
	default:
		return
	}
	p.feed(x.peer, m[:])
}

func (p *play) feed(from bth.GID, b []byte) {
	if p.m.HandleMAD(p.now,
		cm.Addr{GIDPair: bth.GIDPair{Local: self, Remote: from}, QPN: 1, PKey: bth.DefaultPKey},
		b) == nil {
		if _, err := cm.ParseMAD(b); err != nil {
			p.t.Fatalf("accepted an invalid MAD: %v", err)
		}
	}
}

// message delivers an arbitrary message, usually with the right IDs and random other fields.
func (p *play) message() {
	from, attr, flags := hosts[p.of(len(hosts))], cm.AttrREQ+cm.Attribute(p.of(cm.NumAttributes)), p.draw()
	var m cm.MAD
	copy(m[cm.MADHeaderLen+8:], p.take(p.of(64)))
	copy(m[:4], []byte{1, 7, 2, 3})
	m[17] = byte(attr)
	m[cm.MADHeaderLen+3] = byte(p.of(8)) // the peer's communication ID
	if flags&3 != 3 && len(p.seen) > 0 {
		x := p.seen[len(p.seen)-1-p.of(len(p.seen))]
		from = x.peer
		put32(m[cm.MADHeaderLen+4:], uint32(x.local))
		if attr == cm.AttrSIDRREP {
			put32(m[cm.MADHeaderLen:], uint32(x.local))
		} else if x.remote != 0 {
			put32(m[cm.MADHeaderLen:], uint32(x.remote))
		}
		put32(m[8:], uint32(x.tid>>32))
		put32(m[12:], uint32(x.tid))
	}
	if flags&4 == 0 { // plausible values where REP and DREQ have QPNs
		switch attr {
		case cm.AttrREP:
			copy(m[cm.MADHeaderLen+12:], []byte{0, 0, byte(2 + p.of(8))})
		case cm.AttrDREQ:
			copy(m[cm.MADHeaderLen+8:], []byte{0, 0, byte(2 + p.of(4))})
		}
	}
	p.feed(from, m[:])
}

// request delivers a valid REQ or SIDR_REQ.
func (p *play) request() {
	var m cm.MAD
	kind, from, id := p.of(3), hosts[p.of(len(hosts))], cm.CommID(p.of(8)+1)
	h := cm.IPCMHeader{Dst: self.Addr()}
	if kind == 0 {
		r := cm.SIDRREQ{RequestID: id, Service: cm.UDPService(port)}
		h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
		r.Encode(&m, uint64(p.of(2)))
	} else {
		r := cm.REQ{LocalID: id, Service: cm.TCPService(port), GUID: cm.GUID(p.of(2)),
			QPN: bth.QPN(2 + p.of(8)), MTU: 3,
			RemoteTimeout: p.draw() % 32, LocalTimeout: p.draw() % 32, MaxCMRetries: p.draw() % 16,
			InitiatorDepth: 1}
		h.Encode((*[cm.IPCMHeaderLen]byte)(r.Private[:]))
		r.Encode(&m, uint64(p.of(2)))
	}
	p.feed(from, m[:])
}

// pass lets time pass, to the next deadline or any other time.
func (p *play) pass() {
	next, ok := p.m.NextTimeout()
	switch d := p.draw(); {
	case d < 128 && ok:
		p.now = max(p.now, next)
	default:
		p.now += cm.Time(1) << (d % 40)
	}
	p.m.HandleTimeout(p.now)
	if next, ok := p.m.NextTimeout(); ok && next <= p.now {
		p.t.Fatalf("at %d the deadline %d is overdue", p.now, next)
	}
}

// user performs an arbitrary call on one of the user's connections.
func (p *play) user() {
	if len(p.ids) == 0 {
		return
	}
	id, private := p.ids[len(p.ids)-1-p.of(len(p.ids))], p.take(p.of(8))
	switch p.of(10) {
	case 0:
		_ = p.m.Accept(p.now, id, &cm.AcceptParams{QPN: bth.QPN(2 + p.of(4)), PrivateData: private})
	case 1:
		_ = p.m.Reject(p.now, id, cm.ReasonConsumer, nil, private)
	case 2:
		_ = p.m.Ready(p.now, id, private)
	case 3:
		_ = p.m.Disconnect(p.now, id, private)
	case 4:
		_ = p.m.Abort(p.now, id)
	case 5:
		_ = p.m.SendMRA(p.now, id, p.draw()%32)
	case 6:
		p.m.CommEstablished(p.now, id)
	case 7:
		_ = p.m.ReplySIDR(p.now, id, &cm.SIDRReply{QPN: 9})
	case 8:
		i := p.of(len(p.listeners))
		if err := p.m.Unlisten(p.now, p.listeners[i]); err != nil {
			p.t.Fatal(err)
		}
		p.listen(i)
	case 9:
		_ = p.m.Ignore(p.now, id)
	}
}

// call starts something new.
func (p *play) call() {
	to := hosts[p.of(len(hosts))]
	var id cm.CommID
	var err error
	if p.of(3) == 0 {
		id, err = p.m.Resolve(p.now,
			&cm.SIDRParams{Local: self, Remote: to, Service: cm.UDPService(port)})
	} else {
		id, err = p.m.Connect(p.now,
			&cm.ConnectParams{Local: self, Remote: to, Service: cm.TCPService(port), QPN: 3,
				MTU:             1024,
				ResponseTimeout: p.draw() % 32, MaxRetries: p.draw() % 16})
	}
	if err == nil {
		p.ids, p.hold[id] = push(p.ids, id), cm.EventNone
	}
}

// look polls all outputs and checks them and the CM's size.
func (p *play) look() {
	var m cm.MAD
	for {
		to, ok := p.m.PollTransmit(p.now, m[:])
		if !ok {
			break
		}
		p.sent++
		mad, err := cm.ParseMAD(m[:])
		if err != nil {
			p.t.Fatalf("sent an invalid MAD: %v: %x", err, m)
		}
		if to.Local != self || to.QPN == 0 ||
			(to.Remote != hosts[0] && to.Remote != hosts[1] && to.Remote != hosts[2]) {
			p.t.Fatalf("sent to %+v", to)
		}
		if x := (exchange{peer: to.Remote, local: mad.LocalID(), remote: mad.RemoteID(),
			tid: mad.TID()}); x.local != 0 {
			if mad.Attribute() == cm.AttrREQ || mad.Attribute() == cm.AttrSIDRREQ {
				x.remote = 0 // these have none
			}
			p.seen = push(p.seen, x)
		}
		if to.Remote == self && p.draw()&1 == 0 { // a connection with itself
			loop := m
			p.feed(self, loop[:])
		}
		if p.sent > 1<<16 {
			p.t.Fatal("sends forever")
		}
	}
	for ev, ok := p.m.PollEvent(); ok; ev, ok = p.m.PollEvent() {
		p.hear(ev)
	}
	s := p.m.Sizes()
	if s.Conns > maxConns || s.HalfOpen > maxHalfOpen || s.Pending > len(services)*backlog ||
		s.Remote > s.Conns || s.QPs > s.Conns || s.Timers > s.Conns ||
		s.Sources > len(hosts) || s.Events != 0 || s.Transmit != 0 || s.Answers != 0 {
		p.t.Fatalf("holds %+v", s)
	}
}

// hear checks that the events of a connection arrive in order, each once. EventSuspect may repeat.
func (p *play) hear(ev cm.Event) {
	last, known := p.hold[ev.ID]
	first := ev.Kind == cm.EventConnectRequest || ev.Kind == cm.EventSIDRRequest
	again := ev.Kind == last && last == cm.EventSuspect
	if known == first || (known && ev.Kind <= last && !again) ||
		(last >= cm.EventRejected && ev.Kind != cm.EventClosed) {
		p.t.Fatalf("connection %#x: %v after %v", ev.ID, ev.Kind, last)
	}
	p.hold[ev.ID] = ev.Kind
	if first {
		p.ids = push(p.ids, ev.ID)
	}
	if ev.Kind == cm.EventClosed {
		delete(p.hold, ev.ID)
	}
}

// finish closes everything. Nothing may be left then.
func (p *play) finish() {
	p.tape = nil
	p.look()
	for _, id := range slices.Sorted(maps.Keys(p.hold)) {
		if err := p.m.Abort(p.now, id); err != nil {
			p.t.Fatalf("connection %#x has not closed, but is unknown: %v", id, err)
		}
	}
	for range 10_000 {
		p.lookOnly()
		next, ok := p.m.NextTimeout()
		if !ok {
			break
		}
		p.now = max(p.now, next)
		p.m.HandleTimeout(p.now)
	}
	if s := p.m.Sizes(); len(p.hold) != 0 || s != (cm.Sizes{Listeners: len(services)}) {
		p.t.Fatalf("left behind: %d connections, %+v", len(p.hold), s)
	}
}

// lookOnly polls the outputs without answering.
func (p *play) lookOnly() {
	var m cm.MAD
	for _, ok := p.m.PollTransmit(p.now, m[:]); ok; _, ok = p.m.PollTransmit(p.now, m[:]) {
	}
	for ev, ok := p.m.PollEvent(); ok; ev, ok = p.m.PollEvent() {
		p.hear(ev)
	}
}

func put32(b []byte, v uint32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}
