package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/loopback"
	"github.com/gorxe/gorxe/roce"
)

// Stream describes a steady stream of operations over a link in virtual time, in which the result
// depends on the protocol but not on the machine. The same Stream always gives the same Goodput.
type Stream struct {
	Seed  uint64
	Op    roce.Op // OpWrite, OpRead or OpSend
	Size  int     // bytes of each operation
	Count int     // operations
	Depth int     // operations in flight on each QP
	QPs   int     // 0 means 1
	// capacity of the link in each direction, in frames; 0 means practically unlimited
	Queue int
	MTU   roce.MTU      // path MTU
	Plan  loopback.Plan // of both directions

	GoBackN bool // without selective repeat
	// Shared means that all operations of a side use the same memory, as with many benchmarks.
	// Otherwise those in flight on a QP use different memory.
	Shared bool
}

// Goodput is the result of a Stream.
type Goodput struct {
	Time        time.Duration // virtual, until the last completion
	Bits        float64       // payload of completed operations per second of virtual time
	Packets     uint64        // sent by both sides
	Retransmits uint64        // request packets sent again
	Timeouts    uint64        // Local ACK Timeouts
}

// Measure runs a Stream. It returns an error if an operation fails.
func Measure(s Stream) (g Goodput, err error) {
	m := &measurement{Stream: s}
	m.QPs = max(m.QPs, 1)
	if m.Queue == 0 {
		m.Queue = 1 << 14
	}
	c := testbed.Config{
		Virtual: true, Seed: s.Seed, Plan: s.Plan, Link: loopback.Config{Queue: m.Queue},
	}
	for i := range c.Device {
		r := rand.New(rand.NewPCG(m.Seed, uint64(i)))
		c.Device[i] = []roce.Option{roce.WithExpert(roce.Expert{Rand: r.Uint64})}
	}
	if m.bed, err = testbed.New(c); err != nil {
		return g, err
	}
	defer m.bed.Close()
	for i, dev := range m.bed.Dev {
		m.end[i], err = endpoint.New(dev, endpoint.Config{
			QP: roce.QPConfig{SendDepth: m.Depth, RecvDepth: 2 * m.Depth,
				GoBackN: s.GoBackN},
			QPs: m.QPs, SendCQ: 4 * m.Depth * m.QPs, Memory: m.Depth * m.Size,
		})
		if err != nil {
			return g, err
		}
	}
	err = endpoint.Connect(context.Background(), m.end[0], m.end[1],
		roce.ConnectOptions{MTU: s.MTU})
	if err != nil {
		return g, err
	}
	return m.run()
}

// measurement is the state of a Stream. Endpoint 0 posts the operations, endpoint 1 is the target.
type measurement struct {
	Stream
	bed    *testbed.Testbed
	end    [2]*endpoint.Endpoint
	posted int
}

func (m *measurement) run() (g Goodput, err error) {
	var wcs [64]roce.WC
	link := m.bed.Link
	start := link.Now()
	for i := range m.QPs {
		for range m.Depth {
			if err := m.post(i); err != nil {
				return g, err
			}
		}
	}
	for done := 0; done < m.Count; {
		if m.bed.Dev[0].Progress()+m.bed.Dev[1].Progress() == 0 {
			if err := m.bed.Step(); err != nil {
				return g, err
			}
		}
		for m.end[0].CQ.Len() > 0 {
			for _, wc := range wcs[:m.end[0].CQ.Poll(wcs[:])] {
				if err := endpoint.StatusError(&wc); err != nil {
					return g, fmt.Errorf("operation %d: %w", done, err)
				}
				done++
				if err := m.post(int(wc.ID)); err != nil {
					return g, err
				}
			}
		}
		for m.end[1].CQ.Len() > 0 {
			m.end[1].CQ.Poll(wcs[:])
		}
	}
	g.Time = time.Duration(link.Now() - start)
	g.Bits = float64(m.Count) * float64(m.Size) * 8 / g.Time.Seconds()
	sender, receiver := m.bed.Dev[0].Counters(), m.bed.Dev[1].Counters()
	g.Packets = sender.SentPkts + receiver.SentPkts
	g.Retransmits, g.Timeouts = sender.Retransmits, sender.AckTimeouts
	return g, nil
}

// post posts the next operation, if any is left, on the QPs with index i.
func (m *measurement) post(i int) error {
	if m.posted == m.Count {
		return nil
	}
	at := m.posted % m.Depth * m.Size
	if m.Shared {
		at = 0
	}
	m.posted++
	local, remote := m.end[0], m.end[1]
	if m.Op == roce.OpSend {
		if err := remote.QPs[i].PostRecv(roce.RecvWR{SGEs: []roce.SGE{remote.MR.SGE(at,
			m.Size)}}); err != nil {
			return err
		}
	}
	to := remote.MR.Remote()
	return local.QPs[i].PostSend(roce.SendWR{
		ID: uint64(i), Op: m.Op, Flags: roce.Signaled, SGEs: []roce.SGE{local.MR.SGE(at, m.Size)},
		RemoteAddr: to.Addr + uint64(at), RKey: to.RKey,
	})
}
