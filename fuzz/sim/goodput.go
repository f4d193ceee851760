package sim

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Stream is a steady stream of operations of one QP over a link, for measuring in virtual time:
// what counts is the protocol, not the machine. The same Stream always gives the same Goodput.
type Stream struct {
	Seed  uint64
	Op    roce.Op       // OpWrite, OpRead or OpSend
	Size  int           // bytes of each operation
	Count int           // operations
	Depth int           // under way at a time, on each QP
	QPs   int           // 0: 1
	Queue int           // frames that the link holds in each direction; 0: no bound that matters
	MTU   roce.MTU      // path MTU
	Plan  loopback.Plan // both directions
}

// Goodput is what became of a Stream.
type Goodput struct {
	Time        time.Duration // virtual, to the last completion
	Bits        float64       // per second of virtual time, payload of completed operations
	Packets     uint64        // sent by both ends
	Retransmits uint64        // request packets sent again
	Timeouts    uint64        // Local ACK Timeouts
}

// Measure runs a Stream. An error says which operation failed.
func Measure(s Stream) (Goodput, error) {
	m, err := newMeasurement(s)
	if err != nil {
		return Goodput{}, err
	}
	defer m.link.Close()
	return m.run()
}

// measurement is a Stream at work: end 0 posts, end 1 is the target.
type measurement struct {
	Stream
	link *loopback.Link
	dev  [2]*roce.Device
	cq   [2]*roce.CQ
	qp   [2][]*roce.QP
	mr   [2]*roce.MR
}

func newMeasurement(s Stream) (*measurement, error) {
	m := &measurement{Stream: s}
	m.QPs = max(m.QPs, 1)
	if m.Queue == 0 {
		m.Queue = 1 << 14
	}
	var err error
	m.link, err = loopback.NewLink(loopback.Config{Seed: s.Seed, Plan: s.Plan, Virtual: true, Queue: m.Queue})
	if err != nil {
		return nil, err
	}
	for i := range m.dev {
		if err := m.open(i); err != nil {
			return nil, err
		}
	}
	for i, qs := range m.qp {
		for j, q := range qs {
			if err := q.Connect(context.Background(), m.qp[1-i][j].Local(), roce.ConnectOptions{MTU: s.MTU}); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

func (m *measurement) open(i int) (err error) {
	r := rand.New(rand.NewPCG(m.Seed, uint64(i)))
	if m.dev[i], err = roce.New(m.link.Port(i), roce.WithExpert(roce.Expert{Clock: m.link.Now, Rand: r.Uint64})); err != nil {
		return err
	}
	pd, err := m.dev[i].AllocPD()
	if err != nil {
		return err
	}
	if m.cq[i], err = m.dev[i].CreateCQ(4 * m.Depth * m.QPs); err != nil {
		return err
	}
	if m.mr[i], err = pd.RegisterMR(make([]byte, m.Size), roce.LocalWrite|roce.RemoteWrite|roce.RemoteRead); err != nil {
		return err
	}
	for range m.QPs {
		q, err := m.dev[i].CreateQP(pd, roce.QPConfig{SendCQ: m.cq[i], SendDepth: m.Depth, RecvDepth: 2 * m.Depth})
		if err != nil {
			return err
		}
		m.qp[i] = append(m.qp[i], q)
	}
	return nil
}

func (m *measurement) run() (g Goodput, err error) {
	var wcs [64]roce.WC
	begin := m.link.Now()
	posted := 0
	for i := range m.qp[0] {
		for range m.Depth {
			if posted++; posted <= m.Count {
				if err := m.post(i); err != nil {
					return g, err
				}
			}
		}
	}
	for done := 0; done < m.Count; {
		if m.dev[0].Progress()+m.dev[1].Progress() == 0 {
			m.sleep()
		}
		for m.cq[0].Len() > 0 {
			for _, wc := range wcs[:m.cq[0].Poll(wcs[:])] {
				if wc.Status != roce.Success {
					return g, fmt.Errorf("operation %d: %v", done, wc.Status)
				}
				done++
				if posted++; posted <= m.Count {
					if err := m.post(int(wc.ID)); err != nil {
						return g, err
					}
				}
			}
		}
		for m.cq[1].Len() > 0 {
			m.cq[1].Poll(wcs[:])
		}
	}
	g.Time = time.Duration(m.link.Now() - begin)
	g.Bits = float64(m.Count) * float64(m.Size) * 8 / g.Time.Seconds()
	for i, d := range m.dev {
		c := d.Counters()
		g.Packets += c.SentPkts
		if i == 0 {
			g.Retransmits, g.Timeouts = c.Retransmits, c.AckTimeouts
		}
	}
	return g, nil
}

// post posts an operation on the i-th QP.
func (m *measurement) post(i int) error {
	if m.Op == roce.OpSend {
		if err := m.qp[1][i].PostRecv(roce.RecvWR{SGEs: []roce.SGE{m.mr[1].SGE(0, m.Size)}}); err != nil {
			return err
		}
	}
	far := m.mr[1].Remote()
	return m.qp[0][i].PostSend(roce.SendWR{
		ID: uint64(i), Op: m.Op, Flags: roce.Signaled, SGEs: []roce.SGE{m.mr[0].SGE(0, m.Size)}, RemoteAddr: far.Addr, RKey: far.RKey,
	})
}

// sleep goes to the next instant at which something happens.
func (m *measurement) sleep() {
	next := int64(math.MaxInt64)
	if t, ok := m.link.NextEvent(); ok {
		next = t
	}
	for _, d := range m.dev {
		if t, ok := d.NextTimeout(); ok {
			next = min(next, t)
		}
	}
	m.link.AdvanceTo(next)
}
