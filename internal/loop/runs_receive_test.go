package loop

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

const (
	receiveMTU  = 256
	receivedPSN = 1<<24 - 50 // of the first request to a QP; it wraps soon
)

// receiveWorld is a runsPair that receives, and the peers of its QPs.
type receiveWorld struct {
	*runsPair
	rnd   *rand.Rand
	addr  *frame.Address
	key   bth.RKey
	peers [2]receivePeer
}

// newReceiveWorld takes the parameters that are not random from the bits of seed.
func newReceiveWorld(t *testing.T, seed uint64) *receiveWorld {
	w := &receiveWorld{rnd: rand.New(rand.NewPCG(seed, 0)), addr: peerAddress(seed&1 != 0, 1)}
	selective := seed&2 != 0
	port := new(scriptPort)
	if seed&4 != 0 {
		port.source = bth.Port
	}
	var attrs []qp.Attr
	for k := range w.peers {
		attrs = append(attrs, qp.Attr{PathMTU: receiveMTU, DestQPN: bth.QPN(100 + k),
			Selective: selective, Path: pathTo(w.addr), SQPSN: 1<<24 - 20, RQPSN: receivedPSN})
	}
	w.runsPair = newRunsPair(t, pairConfig{selective: selective}, port, attrs)
	w.key = bth.RKey(w.sides[0].mr.RKey())
	for k := range w.peers {
		w.peers[k] = receivePeer{rnd: w.rnd, key: w.key, qpn: w.qps[0][k].QPN()}
	}
	for i, s := range w.sides {
		if seed&8 != 0 { // it needs the payloads until the end of the step
			s.SetGuest(&payloadGuest{lateGuest{side: s}, func() {
				for _, r := range w.ports[i].runs {
					if n := len(r.headers[0]); !bytes.Equal(r.memory[n:], r.original[n:]) {
						t.Error("payloads have changed")
					}
				}
			}}, -1)
		}
	}
	return w
}

// post posts a READ on some QPs, and a receive on all.
func (w *receiveWorld) post(t *testing.T) {
	key := bth.LKey(w.sides[0].mr.LKey())
	for k := range w.peers {
		if w.rnd.IntN(3) == 0 {
			n, at := 1+w.rnd.IntN(30*receiveMTU), uint64(w.rnd.IntN(1000))
			cut := w.rnd.IntN(n)
			w.runsPair.post(t, k, qp.SendWR{Op: qp.OpRead, RKey: w.key, SGEs: []qp.SGE{
				{Addr: 20_000 + at, Length: uint32(cut), LKey: key},
				{Addr: 40_000 + at, Length: uint32(n - cut), LKey: key}}})
		}
		// Sometimes the longest message is too long by a byte.
		second := uint32(longestMessage*receiveMTU - 3000 - w.rnd.IntN(2))
		for i := range w.sides {
			// The queue may be full.
			_, _ = w.qps[i][k].PostRecv([]qp.RecvWR{{SGEs: []qp.SGE{
				{Addr: 1000, Length: 3000, LKey: key}, {Addr: 9001, Length: second, LKey: key}}}})
		}
	}
}

// frames returns frames of both peers. A step receives all of them.
func (w *receiveWorld) frames() [][]byte {
	var all [][]byte
	for n := 1 + w.rnd.IntN(rxBatch-4); len(all) < n; {
		peer := &w.peers[w.rnd.IntN(2)]
		for range min(1+w.rnd.IntN(30), n-len(all)) {
			all = append(all, w.damaged(peer.next()))
		}
	}
	return all
}

// damaged returns the frame of a packet that is wrong in rare cases.
func (w *receiveWorld) damaged(p peerPacket) []byte {
	h, r := &p.h, w.rnd
	switch r.IntN(2500) {
	case 0:
		h.DestQP ^= 1
	case 1:
		h.PKey = 0x1234
	case 2:
		h.PadCount = uint8(r.IntN(4))
	case 3:
		h.Opcode = bth.Opcode(r.IntN(40))
	case 4:
		h.PSN = h.PSN.Next()
	case 5:
		h.BECN = true
	case 6:
		h.FECN = true
	case 7:
		h.Solicited = true
	case 8:
		p.payload -= p.payload / 8 * 4
	case 9:
		h.MigReq = true
	}
	body := slices.Clone(p.extension)
	for range (p.payload + 3) / 4 {
		body = binary.BigEndian.AppendUint32(body, r.Uint32())
	}
	f := w.frame(w.addr, h, body)
	if r.IntN(400) == 0 {
		n := netLen(f)
		f[n+r.IntN(len(f)-n)] ^= 1 << r.IntN(8)
	}
	return f
}

// bursts divides frames into runs: frames of the same length, and perhaps a shorter one.
func (w *receiveWorld) bursts(frames [][]byte) (all []burst) {
	for len(frames) > 0 {
		size, n := len(frames[0]), 1
		for most := 1 + w.rnd.IntN(30); n < min(most, len(frames)) && len(frames[n]) == size; {
			n++
		}
		if n < len(frames) && len(frames[n]) < size && w.rnd.IntN(2) == 0 {
			n++
		}
		all = append(all, burst{frames[:n], n > 1 || w.rnd.IntN(2) == 0})
		frames = frames[n:]
	}
	return all
}

// round makes both sides receive the same packets. It reports whether all QPs still work.
func (w *receiveWorld) round(t *testing.T) bool {
	w.post(t)
	w.step(3)
	w.heed(w.compare(t))
	w.step(4, w.bursts(w.frames())...)
	w.heed(w.compare(t))
	return !slices.ContainsFunc(w.qps[0], func(q *qp.QP) bool { return q.State() == qp.Err })
}

// heed passes the frames that the first side has sent to the peers.
func (w *receiveWorld) heed(sent [][]byte) {
	for _, f := range sent {
		b := frame.PeekBTH(f)
		w.peers[bth.BTH(b).DestQP()-100].heed(b)
	}
}

// Packets that are handled as a run have the effects of single ones.
func TestRunsHaveEffectsOfSinglePackets(t *testing.T) {
	inRuns, framed := 0, 0
	var corrupt, duplicates, gaps, completions uint64
	for seed := range uint64(32) { // each combination of the parameters, twice
		w := newReceiveWorld(t, seed)
		for round, ok := 0, true; ok && round < 40; round++ {
			if ok = w.round(t); t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		inRuns, framed = inRuns+w.ports[0].inRuns, framed+w.ports[0].framed
		c := w.sides[0].eng.Counters()
		corrupt += w.sides[0].ctr.Drops[frame.ReasonICRC]
		duplicates, gaps = duplicates+c.DuplicateRequest, gaps+c.OutOfSeqRequest
		completions += c.Completions
	}
	if inRuns-framed < 6000 || corrupt < 25 || duplicates < 100 || gaps < 250 ||
		completions < 250 {
		t.Errorf("%d packets received in runs, %d of them got headers; %d corrupt, %d duplicates, "+
			"%d after gaps, %d completions: the test is too weak", inRuns, framed, corrupt,
			duplicates, gaps, completions)
	}
}
