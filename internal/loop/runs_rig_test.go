package loop

import (
	"bytes"
	"testing"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/qp"
)

// runsPair is two sides that do the same, the first one with runs. The test plays their peers.
type runsPair struct {
	sides [2]*side
	ports [2]*scriptPort
	qps   [2][]*qp.QP
	enc   frame.Encoder // of the peers
}

// newRunsPair creates a pair whose ports are copies of port. Its QPs have the attributes attrs.
func newRunsPair(t *testing.T, c pairConfig, port *scriptPort, attrs []qp.Attr) *runsPair {
	p := new(runsPair)
	for i := range p.sides {
		c.wrap = func(k int, inner driver.Port) driver.Port {
			if k == 1 {
				return inner
			}
			script := *port
			script.Port, script.t, p.ports[i] = inner, t, &script
			if i == 1 {
				return singlePort{&script}
			}
			return &script
		}
		s, _ := newPair(t, c)
		p.sides[i] = s
		s.SetLocal([]bth.GID{peerAddress(true, 0).Dst, peerAddress(false, 0).Dst}, s.sources)
		for _, a := range attrs {
			q, err := s.eng.CreateQP(qp.InitAttr{
				Type: qp.RC, PD: s.mr.PD(), SendCQ: s.cq, RecvCQ: s.cq, SQDepth: 64, RQDepth: 64,
				MaxSendSGE: 2, MaxRecvSGE: 2,
			})
			must(t, err)
			toRTSOverPath(t, s.Loop, q, a)
			p.qps[i] = append(p.qps[i], q)
		}
	}
	if p.qps[0][0].QPN() != p.qps[1][0].QPN() || p.sides[0].mr.RKey() != p.sides[1].mr.RKey() {
		t.Fatal("the sides have different keys")
	}
	return p
}

// peerAddress returns the addresses of frames from peer n to a side.
func peerAddress(v4 bool, n byte) *frame.Address {
	a := &frame.Address{SrcPort: 0xc001, HopLimit: 64}
	if v4 {
		a.Dst, a.Src = bth.GIDFromIPv4([4]byte{10, 0, 0, 1}), bth.GIDFromIPv4([4]byte{10, 0, 1, n})
	} else {
		a.Dst, a.Src = bth.GID{0: 0xfd, 15: 1}, bth.GID{0: 0xfd, 14: 1, 15: n}
	}
	return a
}

// pathTo returns the path on which the answers to such frames leave.
func pathTo(a *frame.Address) frame.Path {
	back := *a
	back.Src, back.Dst = a.Dst, a.Src
	return frame.NewPath(&back)
}

// frame returns a frame of a peer. body follows the BTH.
func (p *runsPair) frame(a *frame.Address, h *bth.BTHFields, body []byte) []byte {
	f := make([]byte, bth.MaxNetHeader+bth.HeaderLen+len(body)+bth.ICRCLen)
	n := frame.PutHeaders(f, a)
	bth.PutBTH(f[n:], h)
	f = f[:n+bth.HeaderLen+copy(f[n+bth.HeaderLen:], body)+bth.ICRCLen]
	p.enc.Finish(f, n)
	return f
}

// post posts a work request on QP k of both sides, unless it has no room.
func (p *runsPair) post(t *testing.T, k int, wr qp.SendWR) {
	var full [2]bool
	for i, s := range p.sides {
		_, err := p.qps[i][k].Post([]qp.SendWR{wr})
		if full[i] = err != nil; !full[i] {
			s.Posted(p.qps[i][k])
		}
	}
	if full[0] != full[1] {
		t.Errorf("QP %d is full = %v with runs, %v without", k, full[0], full[1])
	}
}

// step runs steps of both sides. The first one receives bursts.
func (p *runsPair) step(steps int, bursts ...burst) {
	for i, s := range p.sides {
		p.ports[i].queue = bursts
		for range steps {
			s.coalesce = coalescer{} // all packets must be received in the same step
			s.TryStep()
			s.link.Advance(time.Microsecond)
		}
	}
}

// compare expects that both sides have the same state and have sent the same frames, which it
// returns.
func (p *runsPair) compare(t *testing.T) (sent [][]byte) {
	sameState(t, 0, p.sides[0], p.sides[1])
	for k, q := range p.qps[0] {
		single := p.qps[1][k]
		got, _ := q.Traffic()
		want, _ := single.Traffic()
		if got != want || q.State() != single.State() {
			t.Errorf("QP %d: %v, %+v with runs; %v, %+v without", k, q.State(), got, single.State(),
				want)
		}
	}
	x, y := p.ports[0], p.ports[1]
	if len(x.sent) != len(y.sent) {
		t.Errorf("%d frames sent with runs, %d without", len(x.sent), len(y.sent))
	}
	for i := range min(len(x.sent), len(y.sent)) {
		if !bytes.Equal(x.sent[i], y.sent[i]) {
			t.Errorf("frame %d:\n%.200x with runs,\n%.200x without", i, x.sent[i], y.sent[i])
			break
		}
	}
	if n := p.sides[0].ctr.TxBytes; n != x.bytes {
		t.Errorf("TxBytes = %d, want %d", n, x.bytes)
	}
	sent, x.sent, y.sent = x.sent, nil, nil
	return sent
}
