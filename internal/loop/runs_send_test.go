package loop

import (
	"math/rand/v2"
	"testing"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// sentPSN is the PSN of the first request to a QP of a sendWorld. It wraps soon.
const sentPSN = 1<<24 - 20

// sendWorld is a runsPair that sends, and the peers of its QPs.
type sendWorld struct {
	*runsPair
	rnd   *rand.Rand
	peers [4]sendPeer
}

// sendPeer is the peer of one QP.
type sendPeer struct {
	addr *frame.Address
	mtu  bth.MTU
	psn  bth.PSN // of its next READ request
	last bth.PSN // of the latest request that it received
	news bool    // it received one since its latest ACK
}

// newSendWorld takes the parameters that are not random from seed.
func newSendWorld(t *testing.T, seed uint64) *sendWorld {
	w := &sendWorld{rnd: rand.New(rand.NewPCG(seed, 0))}
	least := rand.New(rand.NewPCG(seed, 1)) // only the side with runs uses it
	port := &scriptPort{
		buffers:  []int{0, 5, 20}[seed%3],
		leastRun: func() int { return []int{1, 0, 8 << 10, 1}[least.IntN(4)] },
	}
	if seed&2 != 0 {
		port.source = bth.Port
	}
	var attrs []qp.Attr
	for k := range w.peers {
		addr := peerAddress(k%2 == 0, byte(k))
		addr.TrafficClass = uint8(4 * k)
		if seed&4 != 0 {
			addr.VLAN = 5
		}
		mtu := [...]bth.MTU{256, 1024, 1024, 512}[k]
		w.peers[k] = sendPeer{addr: addr, mtu: mtu, psn: sentPSN}
		attrs = append(attrs, qp.Attr{PathMTU: mtu, DestQPN: bth.QPN(100 + k), Path: pathTo(addr),
			SQPSN: 1<<24 - 60, RQPSN: sentPSN})
	}
	w.runsPair = newRunsPair(t, pairConfig{runs: seed&1 != 0}, port, attrs)
	for _, s := range w.sides {
		_, _ = rand.NewChaCha8([32]byte{byte(seed)}).Read(s.mem)
	}
	return w
}

// post posts a random SEND or WRITE from two SGEs on QP k.
func (w *sendWorld) post(t *testing.T, k int) {
	n := w.rnd.IntN(50_000)
	cut, off := w.rnd.IntN(n+1), uint64(w.rnd.IntN(1000))
	key := bth.LKey(w.sides[0].mr.LKey())
	w.runsPair.post(t, k, qp.SendWR{
		Op: []qp.Op{qp.OpWrite, qp.OpSend, qp.OpWriteImm, qp.OpSendInv}[w.rnd.IntN(4)],
		SGEs: []qp.SGE{{Addr: off, Length: uint32(cut), LKey: key},
			{Addr: off + 7000, Length: uint32(n - cut), LKey: key}},
	})
}

// read returns a READ request to QP k, perhaps with a duplicate.
func (w *sendWorld) read(k int) burst {
	peer := &w.peers[k]
	n := 1 + w.rnd.IntN(40_000)
	h := bth.BTHFields{Opcode: bth.RCReadRequest, PKey: bth.DefaultPKey,
		DestQP: w.qps[0][k].QPN(), PSN: peer.psn, AckReq: true}
	body := make([]byte, bth.RETHLen)
	bth.PutRETH(body, uint64(w.rnd.IntN(20_000)), bth.RKey(w.sides[0].mr.RKey()), uint32(n))
	peer.psn = peer.psn.Add(uint32((n-1)/int(peer.mtu) + 1))
	b := burst{frames: [][]byte{w.frame(peer.addr, &h, body)}}
	if w.rnd.IntN(2) == 0 {
		b.frames = append(b.frames, b.frames[0])
	}
	return b
}

// ack returns an ACK of the latest request from QP k, or a NAK.
func (w *sendWorld) ack(k int) burst {
	peer := &w.peers[k]
	peer.news = false
	syndrome := bth.ACKNoLimit
	if w.rnd.IntN(10) == 0 {
		syndrome = bth.NAKSyndrome(bth.NAKPSNSequence)
	}
	h := bth.BTHFields{Opcode: bth.RCAck, PKey: bth.DefaultPKey, DestQP: w.qps[0][k].QPN(),
		PSN: peer.last}
	body := make([]byte, bth.AETHLen)
	bth.PutAETH(body, syndrome, 0)
	return burst{frames: [][]byte{w.frame(peer.addr, &h, body)}}
}

// heed notes which requests the peers have received.
func (w *sendWorld) heed(sent [][]byte) {
	for _, f := range sent {
		h := bth.BTH(frame.PeekBTH(f))
		if op := h.Opcode(); op < bth.RCReadResponseFirst || op > bth.RCAtomicAck {
			peer := &w.peers[h.DestQP()-100]
			peer.last, peer.news = h.PSN(), true
		}
	}
}

// round makes both sides send, and the peers reply. It returns the number of frames sent.
func (w *sendWorld) round(t *testing.T) int {
	var bursts []burst
	for k := range w.peers {
		if w.peers[k].news && w.rnd.IntN(4) > 0 {
			bursts = append(bursts, w.ack(k))
		}
		if w.rnd.IntN(3) > 0 {
			w.post(t, k)
		}
		if w.rnd.IntN(3) == 0 {
			bursts = append(bursts, w.read(k))
		}
	}
	w.step(1+w.rnd.IntN(12), bursts...)
	sent := w.compare(t)
	w.heed(sent)
	return len(sent)
}

// A port that accepts runs sends the same packets as one that does not.
func TestRunsSendSamePackets(t *testing.T) {
	frames, joined := 0, 0
	var duplicates, naks, again uint64
	for seed := range uint64(24) { // each combination of the parameters
		w := newSendWorld(t, seed)
		for round := range 20 {
			frames += w.round(t)
			if t.Failed() {
				t.Fatalf("seed %d, round %d", seed, round)
			}
		}
		c := w.sides[0].eng.Counters()
		duplicates, naks = duplicates+c.DuplicateRequest, naks+c.RcvdSeqNAK
		again += c.Retransmits
		joined += w.ports[0].joined
	}
	if joined < 25_000 || frames-joined < 10_000 || duplicates < 200 || naks < 50 || again < 100 {
		t.Errorf("%d frames sent, %d of them in runs and %d again, %d duplicates, %d NAKs: "+
			"the test is too weak", frames, joined, again, duplicates, naks)
	}
}
