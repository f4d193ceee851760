package engine

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
)

// tape returns the fuzzing engine's input as random numbers. After its end it continues with
// generated numbers, because some callers draw until a number fits.
type tape struct {
	b    []byte
	rest rand.PCG
}

func newTape(b []byte) *tape {
	return &tape{b: b, rest: *rand.NewPCG(uint64(len(b)), 1)}
}

// Uint64 consumes two bytes and repeats them, so they count wherever the caller looks.
func (t *tape) Uint64() uint64 {
	if len(t.b) < 2 {
		t.b = nil
		return t.rest.Uint64()
	}
	v := uint64(binary.BigEndian.Uint16(t.b)) * 0x0001000100010001
	t.b = t.b[2:]
	return v
}

func (t *tape) ended() bool { return len(t.b) == 0 }

// take consumes up to n bytes unchanged.
func (t *tape) take(n int) []byte {
	n = min(n, len(t.b))
	b := t.b[:n]
	t.b = t.b[n:]
	return b
}

// secret fills memory that no peer may read.
const secret = "SECRET!!"

const (
	arenaLen = 32 << 10
	mtu      = 256
	qkey     = bth.QKey(0x1111)
)

// span is a range of the arena.
type span struct{ off, n int }

// bench is an engine over an arena of memory, most of which must not change.
type bench struct {
	t       testing.TB
	eng     *qp.Engine
	mrs     *mr.Table
	pd, pd2 *mr.PD
	cq      *qp.CQ
	now     qp.Time

	mem, was []byte
	granted  []span // what may change
	regions  []span // what peers may change with the right packet
	grants   map[uint64][]span
	buf      [8192]byte
}

func newBench(t testing.TB) *bench {
	r := rand.New(rand.NewPCG(1, 2))
	mrs, err := mr.NewTable(mr.Config{Rand: r.Uint64})
	must(t, err)
	eng, err := qp.NewEngine(qp.Config{MRs: mrs, Rand: r.Uint64})
	must(t, err)
	eng.SetPortMTU(mtu)
	b := &bench{t: t, eng: eng, mrs: mrs, now: 1e9, grants: map[uint64][]span{}}
	b.pd, err = mrs.AllocPD()
	must(t, err)
	b.pd2, err = mrs.AllocPD()
	must(t, err)
	b.cq, err = qp.NewCQ(1 << 12)
	must(t, err)
	b.mem = bytes.Repeat([]byte(secret), arenaLen/len(secret))
	b.was = bytes.Clone(b.mem)
	return b
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// register registers a region of the arena. Memory that a peer may read contains no secret.
func (b *bench) register(pd *mr.PD, off, n int, a mr.Access) *mr.MR {
	b.t.Helper()
	m, err := b.mrs.Register(pd, b.mem[off:off+n], 0x10000+uint64(off), a)
	must(b.t, err)
	if a&mr.RemoteRead != 0 {
		clear(b.mem[off : off+n])
		clear(b.was[off : off+n])
	}
	if a&(mr.RemoteWrite|mr.RemoteAtomic) != 0 {
		b.regions = append(b.regions, span{off, n})
	}
	return m
}

// revoke ends the peer's right to change a range.
func (b *bench) revoke(off int) {
	b.check("before a region is closed")
	b.regions = slices.DeleteFunc(b.regions, func(s span) bool { return s.off == off })
}

// check checks that only granted memory has changed.
func (b *bench) check(when string) {
	b.t.Helper()
	for _, s := range b.granted {
		copy(b.was[s.off:], b.mem[s.off:s.off+s.n])
	}
	for _, ss := range b.grants {
		for _, s := range ss {
			copy(b.was[s.off:], b.mem[s.off:s.off+s.n])
		}
	}
	if bytes.Equal(b.mem, b.was) {
		return
	}
	for i := range b.mem {
		if b.mem[i] != b.was[i] {
			b.t.Fatalf("%s: byte %#x of the arena changed although it must not", when, i)
		}
	}
}

// sge names a piece of a region of the arena.
func sge(m *mr.MR, off, n int) qp.SGE {
	return qp.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: bth.LKey(m.LKey())}
}

func (b *bench) spans(sges []qp.SGE) []span {
	var out []span
	for _, g := range sges {
		if g.Length > 0 {
			out = append(out, span{int(g.Addr - 0x10000), int(g.Length)})
		}
	}
	return out
}

var (
	here    = bth.GIDFromIPv4([4]byte{10, 0, 0, 1})
	there   = bth.GIDFromIPv4([4]byte{10, 0, 0, 2}) // the sender of the fuzzed packets
	witness = bth.GIDFromIPv4([4]byte{10, 0, 0, 3}) // another peer
)

func path(local, remote bth.GID) frame.Path {
	return frame.NewPath(&frame.Address{Src: local, Dst: remote, SrcPort: 0xc001, HopLimit: 9})
}

// connAttr returns all attributes needed to reach RTS.
func connAttr(remote bth.GID, dest bth.QPN) qp.Attr {
	return qp.Attr{PathMTU: mtu, RQPSN: 0xfffff0, SQPSN: 0xfffff8, DestQPN: dest,
		Path: path(here, remote), QKey: qkey,
		Access: mr.RemoteRead | mr.RemoteWrite | mr.RemoteAtomic, MaxRdAtomic: 4,
		MaxDestRdAtomic: 4, MinRNRTimer: 1,
		Timeout: 10, RetryCnt: 3, RNRRetry: 3}
}

// raise moves a QP from RESET to a state.
func raise(t testing.TB, eng *qp.Engine, now qp.Time, q *qp.QP, a qp.Attr, to qp.State) {
	t.Helper()
	masks := map[qp.Type][3]qp.AttrMask{
		qp.RC: {qp.AttrAccess | qp.AttrSelective,
			qp.AttrPath | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
			qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic},
		qp.UC: {qp.AttrAccess, qp.AttrPath | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN,
			qp.AttrSQPSN},
		qp.UD: {qp.AttrQKey, 0, qp.AttrSQPSN},
	}
	for i, st := range []qp.State{qp.Init, qp.RTR, qp.RTS} {
		if st > to {
			return
		}
		a.State = st
		must(t, q.Modify(now, &a, masks[q.Type()][i]|qp.AttrState))
	}
}

// next returns the engine's next packet, parsed. Everything that it sends must be well formed.
func (b *bench) next(p *bth.Packet) bool {
	b.t.Helper()
	if !b.eng.HasTransmit(b.now) {
		return false
	}
	tx := b.eng.PollTransmit(b.now, b.buf[:])
	if tx == nil {
		return false
	}
	if err := p.Parse(b.buf[tx.NetLen:tx.Len]); err != nil {
		b.t.Fatalf("the engine sent a packet that does not parse: %v: % x", err,
			b.buf[tx.NetLen:tx.Len])
	}
	if len(p.Payload) > mtu || (len(p.Payload)+p.BTH.PadCount())%4 != 0 {
		b.t.Fatalf("%v with %d bytes of payload and pad %d", p.BTH.Opcode(), len(p.Payload),
			p.BTH.PadCount())
	}
	return true
}

// pass lets time pass and handles what is due.
func (b *bench) pass(d qp.Time) {
	b.now += d
	for range 64 {
		t, ok := b.eng.NextTimeout()
		if !ok || t > b.now {
			return
		}
		b.eng.HandleTimeout(b.now)
		b.eng.HasTransmit(b.now)
		if u, ok := b.eng.NextTimeout(); ok && u == t {
			return // an ACK that is due waits for PollTransmit
		}
	}
	b.t.Fatal("a timer fires again and again at the same instant")
}

func (b *bench) poll() []qp.WC {
	var wcs [256]qp.WC
	var out []qp.WC
	for {
		n := b.cq.Poll(wcs[:])
		out = append(out, wcs[:n]...)
		if n < len(wcs) {
			return out
		}
	}
}

// soakTapes is the number of tapes in a soak test.
const soakTapes = 300

func randomTape(seed, n int) []byte {
	r := rand.New(rand.NewPCG(uint64(seed), 9))
	b := make([]byte, n)
	for j := range b {
		b[j] = byte(r.Uint32())
	}
	return b
}

// seedTapes are random tapes of useful length, and the packets that crashed other stacks.
func seedTapes(f *testing.F) {
	for i := range 40 {
		f.Add(randomTape(i, 200+100*i))
	}
	f.Add([]byte{})
	f.Add(bytes.Repeat([]byte{0}, 400))
	f.Add(bytes.Repeat([]byte{0xff}, 400))
}

// soak plays random tapes and checks that each of the named counters counts something.
func soak(t *testing.T, play func(testing.TB, []byte) *qp.Counters, names ...string) {
	sum := map[string]uint64{}
	for i := range soakTapes {
		v := reflect.ValueOf(*play(t, randomTape(i, 6000)))
		for j := range v.NumField() {
			sum[v.Type().Field(j).Name] += v.Field(j).Uint()
		}
	}
	for _, name := range names {
		if sum[name] < soakTapes/10 {
			t.Errorf("%s: %d in %d tapes", name, sum[name], soakTapes)
		}
	}
	t.Log(sum)
}

// classes returns the classes of packets with these names.
func classes(names ...string) []*packets.Class {
	var out []*packets.Class
	all := packets.Classes()
	for _, name := range names {
		i := slices.IndexFunc(all, func(c packets.Class) bool { return c.Name == name })
		out = append(out, &all[i])
	}
	return out
}
