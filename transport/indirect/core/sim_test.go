package core

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/transport/internal/events"
)

// The simulation runs two machines, both initiators and responders, in virtual time, one scenario
// per seed. Datagrams are lost, duplicated and delayed. WRITEs arrive in order, delayed.
// Registrations fail. Users reuse their memory as soon as they may. Some connections die, and some
// drivers stop for long. A model of the memory on both sides checks that
//
//   - each transfer is acknowledged to its user at most once and ends exactly once;
//   - one that ends successfully was delivered exactly once before, every byte correct, and one
//     that was delivered was complete;
//   - nothing is written to memory that is not registered, nor to a slot with another transfer's
//     data;
//   - nothing leaves a slot before the valid answer was sent;
//   - READs never use the buffer;
//   - everything ends in bounded virtual time, and no live peer is considered dead.
var (
	simSeed  = flag.Int64("core.seed", -1, "run the scenario of this seed alone, and print it")
	simSeeds = flag.Uint64("core.n", 1000, "run this many seeds")
)

const (
	simSlots   = 3
	simSlot    = 64
	simSegment = 8
	simMem     = 1 << 14
	keyUser    = 1
	keySlots   = 2
)

// simTransfer is the model's view of a transfer.
type simTransfer struct {
	from, n               int
	kind                  Kind
	src, dst              uint64 // at the initiator, at the responder
	len                   uint32
	tid                   TID
	hopeless              bool // registration never succeeds
	registered, delivered bool
	answered, acked, sent bool
	finished              bool
	status                Status
}

type simHost struct {
	id        int
	m         *Machine
	mem       [simMem]byte
	slots     [simSlots * simSlot]byte
	owner     [simSlots]uint32 // the immediate's TID bits + 1 of the last writer of the slot
	brk       uint64
	lineFree  Time // when the last WRITE in flight arrives
	transfers map[TID]*simTransfer
	failed    bool
	posted    int
	naps      bool     // its driver runs from time to time and finds several events at once
	frozen    Time     // until then its driver does not run
	inbox     []func() // what its NIC has received meanwhile
}

// simInbox bounds the datagrams that wait in a NIC.
const simInbox = 64

// takes delivers an event to the driver when it runs.
func (h *simHost) takes(now Time, datagram bool, f func()) {
	switch {
	case now >= h.frozen && len(h.inbox) == 0:
		f()
	case !datagram || len(h.inbox) < simInbox:
		h.inbox = append(h.inbox, f)
	}
}

// runs reports whether the driver runs. It processes what has arrived first.
func (h *simHost) runs(now Time) bool {
	if now < h.frozen {
		return false
	}
	for _, f := range h.inbox {
		f()
	}
	h.inbox = h.inbox[:0]
	return true
}

type sim struct {
	t     testing.TB
	rng   *rand.Rand
	now   Time
	q     events.Queue[Time]
	hosts [2]*simHost
	log   func(string, ...any)
	hash  interface{ Write([]byte) (int, error) }
	err   error

	loss, dup, frp float64
	total          int
	dies           Time
	hopeless       float64
	// One driver stops from then on, for as long as RC tolerates.
	freezes Time
}

func (s *sim) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("at %d: %w", s.now, fmt.Errorf(format, args...))
	}
}

func (s *sim) after(d Time, f func()) {
	s.q.Add(s.now+d, f)
}

func (s *sim) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	fmt.Fprintf(s.hash, "%d %s\n", s.now, line)
	if s.log != nil {
		s.log("%9d %s", s.now, line)
	}
}

func simPattern(from, n, i int) byte { return byte(from*131 + n*31 + i*7 + 1) }

// post starts a transfer of a random kind.
func (s *sim) post(h *simHost) {
	peer := s.hosts[1-h.id]
	x := &simTransfer{from: h.id, n: h.posted, len: uint32(1 + s.rng.IntN(simSlot)),
		hopeless: s.rng.Float64() < s.hopeless}
	if s.rng.IntN(4) == 0 {
		x.kind = Read
	}
	if h.brk+simSlot > simMem/2 || peer.brk+simSlot > simMem/2 {
		return
	}
	x.src, x.dst = h.brk, simMem/2+uint64(h.posted)*simSlot
	h.brk += simSlot
	from := h.mem[x.src:]
	if x.kind == Read {
		from = peer.mem[x.dst:]
	}
	for i := range x.len {
		from[i] = simPattern(x.from, x.n, int(i))
	}
	tid, err := h.m.Post(s.now,
		&Op{Kind: x.kind, Local: Local{Addr: x.src, LKey: keyUser}, RKey: keyUser, DBA: x.dst,
			Len: x.len, Cookie: uint64(x.n)})
	if err != nil {
		h.brk -= simSlot
		if !errors.Is(err, ErrFull) && h.m.Err() == nil {
			s.fail("Post: %w", err)
		}
		return
	}
	x.tid = tid
	h.transfers[tid] = x
	h.posted++
	s.say("%d posts %v %08x, %d bytes to %d", h.id, x.kind, tid, x.len, x.dst)
}

// turn performs all of a machine's actions.
func (s *sim) turn(h *simHost) {
	if h.m.Err() != nil && !h.failed {
		s.say("%d: %v", h.id, h.m.Err())
		if errors.Is(h.m.Err(), ErrProtocol) || errors.Is(h.m.Err(), ErrSilent) {
			s.fail("%w among honest peers", h.m.Err())
		}
		s.kill()
	}
	var a Action
	for n := 0; h.m.Poll(s.now, &a) && s.err == nil; n++ {
		if n > 10000 {
			s.fail("Poll has no end")
		}
		s.do(h, &a)
	}
}

func (s *sim) kill() {
	for _, h := range s.hosts {
		if !h.failed {
			h.failed = true
			h.m.Fail(s.now)
		}
	}
}

func (s *sim) do(h *simHost, a *Action) {
	peer := s.hosts[1-h.id]
	switch a.Kind {
	case DoControl:
		s.control(h, peer, a.Msg)
	case DoWrite:
		s.write(h, peer, *a)
	case DoRegister:
		s.register(h, peer, a)
	case DoMove:
		x := peer.transfers[a.TID]
		if x == nil || !x.registered || !x.answered || x.kind == Read {
			s.fail("move for a transfer that may not: %+v", x)
			return
		}
		if h.owner[a.Slot] != uint32(a.TID&immTIDMask)+1 || a.Off+a.Len > x.len {
			s.fail("move from slot %d of another transfer", a.Slot)
			return
		}
		copy(h.mem[x.dst+uint64(a.Off):][:a.Len], h.slots[uint32(a.Slot)*simSlot+a.Off:])
	case DoRelease:
		s.released(h, peer.transfers[a.TID], a)
	case DoAcked:
		x := h.transfers[a.TID]
		if x.acked || x.finished {
			s.fail("%08x acknowledged twice, or too late", a.TID)
		}
		x.acked = true
	case DoSent:
		x := h.transfers[a.TID]
		if !x.acked || x.sent || x.finished || x.kind != Write {
			s.fail("%08x is sent: %+v", a.TID, x)
		}
		x.sent = true
		for i := range x.len { // the user may reuse the source
			h.mem[x.src+uint64(i)] = 0xdd
		}
	case DoDone:
		s.done(h, peer, a)
	}
}

func (s *sim) control(h, peer *simHost, msg [MessageLen]byte) {
	var g message
	if !g.parse(msg[:]) {
		s.fail("a machine sent what no machine takes: %x", msg)
		return
	}
	if g.typ == msgAnswer && g.has(flagValid) {
		if x := peer.transfers[g.tid]; x != nil {
			x.answered = true
		}
	}
	copies := 1
	if s.rng.Float64() < s.loss {
		copies = 0
	} else if s.rng.Float64() < s.dup {
		copies = 2
	}
	s.say("%d sends type %d flags %x of %08x, %d arrive", h.id, g.typ, g.flags, g.tid, copies)
	for range copies {
		s.after(Time(1+s.rng.IntN(30)), func() {
			if !peer.failed {
				peer.takes(s.now, true, func() { peer.m.HandleControl(s.now, msg[:]) })
			}
		})
	}
}

func (s *sim) write(h, peer *simHost, a Action) {
	h.lineFree = max(h.lineFree, s.now+Time(1+s.rng.IntN(20))) + Time(s.rng.IntN(3))
	s.say("%d writes %d bytes of %08x, imm %v %08x", h.id, a.Len, a.TID, a.WithImm, a.Imm)
	s.after(h.lineFree-s.now, func() {
		if h.failed || peer.failed {
			return
		}
		data := h.mem[a.Local.Addr:][:a.Len] // a NIC may read the source until the last moment
		switch {
		case a.Len == 0: // only the acknowledgment
		case a.RKey == keySlots:
			slot := a.RemoteAddr / simSlot
			who := a.Imm>>16&immTIDMask + 1
			if l := &peer.m.ownSlots[slot]; l.busy && uint32(l.tid)+1 != who {
				s.fail("slot %d overwritten by %08x", slot, a.TID)
			}
			peer.owner[slot] = who
			copy(peer.slots[a.RemoteAddr:], data)
		default:
			s.mayWrite(h, peer, &a)
			copy(peer.mem[a.RemoteAddr:], data)
		}
		if a.WithImm {
			peer.takes(s.now, false, func() { peer.m.HandleData(s.now, a.Imm, a.Len) })
		}
		s.after(Time(1+s.rng.IntN(10)), func() {
			if !h.failed {
				h.takes(s.now, false, func() { h.m.DataDone(s.now) })
			}
		})
	})
}

// mayWrite checks that the memory belongs to an unfinished transfer.
func (s *sim) mayWrite(h, peer *simHost, a *Action) {
	if x := h.transfers[a.TID]; x != nil && x.kind == Write && a.RemoteAddr >= x.dst &&
		a.RemoteAddr+uint64(a.Len) <= x.dst+uint64(x.len) {
		if !x.registered || x.delivered {
			s.fail("%08x writes to memory that is not registered", a.TID)
		}
		return
	}
	x := peer.transfers[a.TID]
	if x == nil || x.kind != Read || a.RemoteAddr < x.src ||
		a.RemoteAddr+uint64(a.Len) > x.src+uint64(x.len) || x.finished {
		s.fail("a READ's data comes to memory that is none of its: %+v", x)
	}
}

func (s *sim) register(h, peer *simHost, a *Action) {
	x := peer.transfers[a.TID]
	if x == nil || x.registered || x.delivered || x.dst != a.DBA || x.len != a.Len ||
		x.kind != a.Type {
		s.fail("asked to register for a transfer that was not requested: %+v for %+v", a, x)
		return
	}
	entry, tid := a.Entry, a.TID
	answer := func() {
		ok := !x.hopeless && s.rng.Float64() >= s.frp
		x.registered = ok
		s.say("%d registers %08x: %v", h.id, tid, ok)
		h.m.Registered(s.now, entry, tid, ok, Local{Addr: x.dst, LKey: keyUser}, x.dst, keyUser)
	}
	if s.rng.IntN(2) == 0 {
		s.after(Time(s.rng.IntN(60)), answer)
		return
	}
	answer()
}

func (s *sim) released(h *simHost, x *simTransfer, a *Action) {
	s.say("%d releases %08x, delivered %v", h.id, a.TID, a.Delivered)
	if x == nil || !x.registered || x.delivered {
		s.fail("released what is not registered: %+v", x)
		return
	}
	x.registered = false
	if !a.Delivered {
		return
	}
	x.delivered = true
	if x.kind == Write {
		s.compare(x, h.mem[x.dst:])
		clear(h.mem[x.dst:][:x.len]) // the user reuses it
	} else {
		clear(h.mem[x.dst:][:x.len])
	}
}

func (s *sim) compare(x *simTransfer, got []byte) {
	for i := range x.len {
		if want := simPattern(x.from, x.n, int(i)); got[i] != want {
			s.fail("%08x: byte %d of %d is %d, should be %d", x.tid, i, x.len, got[i], want)
			return
		}
	}
}

func (s *sim) done(h, peer *simHost, a *Action) {
	x := h.transfers[a.TID]
	s.say("%d: %08x is done: %v", h.id, a.TID, a.Status)
	if x == nil || x.finished || a.Cookie != uint64(x.n) {
		s.fail("%08x ended twice", a.TID)
		return
	}
	x.finished, x.status = true, a.Status
	switch {
	case a.Status == StatusOK && (!x.delivered || !x.acked || x.sent != (x.kind == Write)):
		s.fail("%08x ended well, but: %+v", a.TID, x)
	case a.Status == StatusOK && x.hopeless:
		s.fail("%08x was never registered", a.TID)
	case a.Status == StatusRefused && !h.failed && x.registered:
		s.fail("%08x was given up and is still registered", a.TID)
	case a.Status != StatusOK && !x.hopeless && !h.failed && s.loss < 0.9 && s.frp < 0.9:
		s.fail("%08x failed with a chance to succeed: %v", a.TID, a.Status)
	}
	if x.kind == Read && a.Status == StatusOK {
		s.compare(x, h.mem[x.src:])
	}
	for i := range x.len { // the user may reuse the memory
		h.mem[x.src+uint64(i)] = 0xee
	}
	_ = peer
}
