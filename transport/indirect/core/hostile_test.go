package core

import (
	"math/rand/v2"
	"testing"
)

// TestHostile checks that arbitrary messages of a peer, in any order, cause no panic, move no byte
// outside a slot and its transfer, and stay bounded. Everything that was started can still be
// ended, so no entry is lost to a peer that behaves again.
func TestHostile(t *testing.T) {
	seeds := uint64(400)
	if testing.Short() {
		seeds = 50
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 3))
		m, err := New(Config{Dynamic: true, Entries: 4, Timeout: 50, Patience: 2000, Silence: 5000,
			Slots: 3, Slot: 64, PeerSlots: 2, PeerSlot: 64, Segment: 16})
		if err != nil {
			t.Fatal(err)
		}
		h := &hostile{t: t, r: r, m: m}
		for range 3000 {
			h.now += Time(r.IntN(20))
			h.act()
			if r.IntN(20) == 0 {
				h.settle()
			}
		}
	}
}

type hostile struct {
	t   *testing.T
	r   *rand.Rand
	m   *Machine
	now Time
}

func (h *hostile) act() {
	r, m := h.r, h.m
	switch r.IntN(8) {
	case 0, 1, 2:
		var b [MessageLen]byte
		g := message{
			typ: msgType(r.IntN(7)), flags: uint8(r.IntN(16)), slot: uint16(r.IntN(5)),
			tid: TID(r.IntN(24)), sba: r.Uint64(), dba: uint64(r.IntN(100)),
			len: uint32(r.IntN(80)), rkey: r.Uint32(),
		}
		if r.IntN(4) == 0 {
			g.slot = NoSlot
		}
		g.put(&b, 0)
		if r.IntN(10) == 0 {
			b[r.IntN(MessageLen)] ^= byte(1 << r.IntN(8))
		}
		n := MessageLen
		if r.IntN(10) == 0 {
			n = r.IntN(MessageLen)
		}
		m.HandleControl(h.now, b[:n])
	case 3:
		m.HandleData(h.now, slotImm(TID(r.IntN(24)), uint16(r.IntN(4)), uint32(r.IntN(4))),
			uint32(r.IntN(24)))
	case 4:
		m.HandleData(h.now, r.Uint32(), uint32(r.IntN(24)))
	case 5:
		_, _ = m.Post(h.now, &Op{Kind: Kind(r.IntN(2)), Len: uint32(r.IntN(64))})
	case 6:
		m.DataDone(h.now)
	case 7:
		m.HandleTimeout(h.now)
	}
	if r.IntN(2) == 0 {
		return // several messages arrive before the driver acts
	}
	h.drain()
	if m.err != nil && r.IntN(4) == 0 {
		m.Fail(h.now)
		h.drain()
		h.m, _ = New(m.cfg)
	}
}

// settle abandons everything that the peer has started.
func (h *hostile) settle() {
	m := h.m
	h.drain()
	for range Window {
		m.DataDone(h.now)
		h.drain()
	}
	for i := range m.in {
		e := &m.in[i]
		if m.err != nil || e.state == inFree {
			continue
		}
		var b [MessageLen]byte
		(&message{typ: msgRelease, flags: flagAbort, tid: e.tid, slot: NoSlot}).put(&b, 0)
		m.HandleControl(h.now, b[:])
		for range Window {
			h.drain()
			m.DataDone(h.now)
		}
		if h.drain(); m.err == nil && e.state != inFree {
			h.t.Fatalf("an entry is lost: %+v", e)
		}
	}
}

func (h *hostile) drain() {
	var a Action
	for n := 0; h.m.Poll(h.now, &a); n++ {
		if n > 1000 {
			h.t.Fatal("Poll returns actions without end")
		}
		switch a.Kind {
		case DoRegister:
			h.m.Registered(h.now, a.Entry, a.TID, h.r.IntN(2) == 0, Local{}, 0, 0)
		case DoMove:
			e := &h.m.in[a.Entry]
			if int(a.Slot) >= h.m.cfg.Slots || a.Off+a.Len > h.m.cfg.Slot || a.Off+a.Len > e.len ||
				e.kind != Write || e.tid != a.TID {
				h.t.Fatalf("moves %+v for %+v", a, e)
			}
		}
	}
	if h.m.send.flying > Window || h.m.dirty.len() > 2*h.m.cfg.Entries {
		h.t.Fatal("out of bounds")
	}
}
