package indirect

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// losses decides in the simulation which frames of one direction are lost. The n-th control
// message of a kind about a transfer has the same fate with both methods, although they send
// different frames before it: the comparison must not depend on the order of random draws. The
// fates of other frames (data, acknowledgments) come from a common sequence.
type losses struct {
	p    float64
	seed uint64
	rng  *rand.Rand
	sent map[message]uint64 // how often each message was sent
}

// message identifies what a control message is about.
type message struct {
	kind byte
	tid  uint32
}

func newLosses(p float64, seed uint64) *losses {
	rng := rand.New(rand.NewPCG(seed, 3))
	return &losses{p: p, seed: seed, rng: rng, sent: map[message]uint64{}}
}

// Offsets in a frame over IPv4, and in a control message (see package core).
const (
	bthAt      = 14 + 20 + 8
	payloadAt  = bthAt + 12 + 8 // after BTH and DETH
	icrcLen    = 4
	udSendOnly = 0x64
	kindAt     = 4
	tidAt      = 12
)

// filter implements loopback.Filter.
func (l *losses) filter(f []byte) loopback.Action {
	rng := l.rng
	if m, ok := control(f); ok {
		l.sent[m]++
		rng = rand.New(rand.NewPCG(l.seed^uint64(m.kind)<<56, uint64(m.tid)<<32|l.sent[m]))
		rng.Uint64()
	}
	if rng.Float64() < l.p {
		return loopback.Drop
	}
	return loopback.Pass
}

// control returns what a frame is about if it carries a control message.
func control(f []byte) (m message, ok bool) {
	if len(f) != payloadAt+core.MessageLen+icrcLen || f[bthAt] != udSendOnly {
		return m, false
	}
	b := f[payloadAt : payloadAt+core.MessageLen]
	if _, ok := core.Token(b); !ok {
		return m, false
	}
	return message{b[kindAt], binary.BigEndian.Uint32(b[tidAt:])}, true
}
