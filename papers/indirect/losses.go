package indirect

import (
	"encoding/binary"
	"math/rand/v2"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/transport/indirect/core"
)

// losses decides in the simulation which frames of one direction are lost. The n-th message of a kind about a transfer has the same fate
// with both methods, though they send different frames before it: the methods are compared in the same world, and not by the luck of their dice. Other
// frames (data, acknowledgements) take theirs from a stream.
type losses struct {
	p    float64
	seed uint64
	rng  *rand.Rand
	sent map[message]uint64
}

// message is what a control message says that it is about.
type message struct {
	kind byte
	tid  uint32
}

func newLosses(p float64, seed uint64) *losses {
	return &losses{p: p, seed: seed, rng: rand.New(rand.NewPCG(seed, 3)), sent: map[message]uint64{}}
}

// Where things stand in a frame over IPv4, and in a control message (see core).
const (
	bthAt      = 14 + 20 + 8
	payloadAt  = bthAt + 12 + 8 // behind BTH and DETH
	icrcLen    = 4
	udSendOnly = 0x64
	kindAt     = 4
	tidAt      = 12
)

// filter is a loopback.Filter.
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
