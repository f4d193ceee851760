package qp

import (
	"testing"

	"github.com/gorxe/gorxe/bth"
)

// Requests with a wrong key, range or right are counted: for RC, for UC, and for duplicates.
func TestBadRKeysAreCounted(t *testing.T) {
	wrong := func(k *talk, p pkt) pkt { p.key = k.rkey() + 1; return p }
	outside := func(k *talk, p pkt) pkt { p.va = k.at(len(k.mem)); return p }
	for name, edit := range map[string]func(*talk, pkt) pkt{"key": wrong, "range": outside} {
		for op, make := range map[string]func(*talk) pkt{
			"write":  func(k *talk) pkt { return k.write(0, seq(8)) },
			"read":   func(k *talk) pkt { return k.read(0, 0, 8) },
			"atomic": func(k *talk) pkt { return k.fetchAdd(0, 0, 1) },
		} {
			k := newTalk(t, RC)
			k.say(edit(k, make(k)))
			if n := k.Counters().BadRKey; n != 1 {
				t.Errorf("RC %s with a wrong %s: BadRKey = %d, want 1", op, name, n)
			}
		}
		k := newTalk(t, UC)
		p := edit(k, k.write(0, seq(8)))
		p.op = bth.UCWriteOnly
		k.say(p)
		if n := k.Counters(); n.BadRKey != 1 || n.DropAccess != 1 {
			t.Errorf("UC WRITE with a wrong %s: BadRKey = %d, DropAccess = %d, want 1", name,
				n.BadRKey, n.DropAccess)
		}
		k = newTalk(t, RC)
		k.say(k.read(0, 0, 8))
		k.listen()
		k.say(edit(k, k.read(0, 0, 8)))
		if n := k.Counters(); n.BadRKey != 1 || n.DropReplay != 1 {
			t.Errorf("duplicate READ with a wrong %s: BadRKey = %d, DropReplay = %d, want 1", name,
				n.BadRKey, n.DropReplay)
		}
		k.is(RTS)
	}
	k := newTalk(t, RC)
	k.say(k.write(0, seq(8)), k.read(1, 0, 8), k.write(1, seq(8)))
	if n := k.Counters().BadRKey; n != 0 {
		t.Errorf("valid requests: BadRKey = %d, want 0", n)
	}
}

// Packets whose PSN is far from the expected one are counted; those of ordinary losses are not.
func TestImplausiblePSNsAreCounted(t *testing.T) {
	for _, c := range []struct {
		name string
		pkt  func(k *talk) pkt
		want uint64
	}{
		{"request after a gap", func(k *talk) pkt { return k.write(5, seq(8)) }, 0},
		{"request far ahead", func(k *talk) pkt { return k.write(maxDistance+5, seq(8)) }, 1},
		{"duplicate", func(k *talk) pkt { return k.write(1, seq(8)) }, 0},
		{"request far behind", func(k *talk) pkt { return k.write(-maxDistance, seq(8)) }, 1},
		{"old READ", func(k *talk) pkt { return k.read(-maxDistance, 0, 8) }, 0},
		{"old ACK", func(*talk) pkt { return ack(-1) }, 0},
		{"very old ACK", func(*talk) pkt { return ack(-maxDistance - 1) }, 1},
		{"ACK of a packet never sent", func(*talk) pkt { return ack(1) }, 1},
	} {
		k := newTalk(t, RC)
		k.say(k.write(0, seq(8)), k.write(1, seq(8)))
		k.listen()
		k.post(SendWR{Op: OpSend})
		k.listen()
		k.say(c.pkt(k))
		if n := k.Counters().OutOfWindow; n != c.want {
			t.Errorf("%s: OutOfWindow = %d, want %d", c.name, n, c.want)
		}
	}
}
