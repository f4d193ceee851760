package scale

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

const (
	// inFlight is the number of bursts in flight in every lane, each on its own QP if the lane has
	// enough. So all lanes have the same packets per message. If several messages of a QP were in
	// flight, one ACK would acknowledge them all, to the advantage of few QPs.
	inFlight = 32
	// sendDepth is the depth of each send queue of the sender.
	sendDepth = 32
	// Each region is on its own page (mrStride), at varying offsets in the page (mrSkew), as the
	// buffers of programs are.
	mrStride, mrSkew = 4096, 64

	connectTime = 30 * time.Second

	rights = roce.LocalWrite | roce.RemoteWrite // of all regions
)

// devices are two devices that are connected by many QPs. Device 0 sends.
type devices struct {
	*testbed.Testbed
	link    string
	cpus    []int
	send    *side
	recv    *side
	first   target   // of the first QP; the others follow in memory
	targets []target // of each MR
	setup   time.Duration
	size    footprint

	interrupted atomic.Bool // the user has interrupted the run
}

// side is one of the devices with its objects.
type side struct {
	*endpoint.Endpoint // MR has msgSize bytes for each QP
	mrs                []*roce.MR
}

// target says where a message comes from and where it goes.
type target struct {
	src roce.SGE
	dst uint64
	key roce.RKey
}

// footprint is the memory of a QP and an MR on the Go heap in bytes, the mean over both sides: of
// a QP without the rings of the configured depths, of an MR without the registered memory. It is
// 0 if there are too few objects for a mean.
type footprint struct{ qp, mr int }

// enough is the number of objects from which a mean is meaningful: what all objects share hardly
// counts.
const enough = 1024

func (f footprint) String() string {
	var s string
	if f.qp > 0 {
		s += fmt.Sprintf("; %d bytes per QP without its rings", f.qp)
	}
	if f.mr > 0 {
		s += fmt.Sprintf("; %d bytes per MR without its memory", f.mr)
	}
	return s
}

// openDevices creates two devices with QPs and MRs and connects them. After an error nothing is
// left.
func openDevices(ctx context.Context, link string, qps, mrs int, cpus []int) (*devices, error) {
	bed, err := testbed.New(testbed.Config{
		Veth: link == kit.Veth,
		Options: []roce.Option{
			roce.WithProgress(roce.Manual),
			roce.WithExpert(roce.Expert{MaxQP: MaxCount, MaxMR: MaxCount + 2}),
		},
	})
	if err != nil {
		return nil, err
	}
	d := &devices{Testbed: bed, link: link, cpus: cpus}
	start := time.Now()
	if err := d.create(ctx, qps, mrs); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	d.setup = time.Since(start)
	return d, nil
}

func (d *devices) create(ctx context.Context, qps, mrs int) error {
	var sides [2]*side
	for i, dev := range d.Dev {
		e, err := endpoint.New(dev, endpoint.Config{
			QPs: -1, SendCQ: 2 * inFlight, Memory: qps * msgSize, Access: rights,
		})
		if err != nil {
			return err
		}
		sides[i] = &side{Endpoint: e}
	}
	d.send, d.recv = sides[0], sides[1]
	if err := d.createQPs(ctx, qps); err != nil {
		return err
	}
	if err := d.createMRs(mrs); err != nil {
		return err
	}
	d.first = target{d.send.MR.SGE(0, msgSize), d.recv.MR.Addr(), d.recv.MR.RKey()}
	for i := range mrs {
		to := d.recv.mrs[i]
		d.targets = append(d.targets, target{d.send.mrs[i].SGE(0, msgSize), to.Addr(), to.RKey()})
	}
	return nil
}

// createQPs creates n QPs on both sides and connects them.
func (d *devices) createQPs(ctx context.Context, n int) error {
	before := heap()
	sendRings, err := d.send.createQPs(n, true)
	if err != nil {
		return err
	}
	recvRings, err := d.recv.createQPs(n, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	err = endpoint.Connect(ctx, d.send.Endpoint, d.recv.Endpoint, roce.ConnectOptions{})
	if err != nil {
		return fmt.Errorf("connect the QPs: %w", err)
	}
	if n >= enough {
		d.size.qp = (int(heap()-before) - sendRings - recvRings) / (2 * n)
	}
	return nil
}

// createQPs creates n QPs and returns the bytes of their rings.
func (s *side) createQPs(n int, sends bool) (rings int, err error) {
	for i := range n {
		c := roce.QPConfig{
			SendCQ: s.CQ, SendDepth: 1, RecvDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 1,
		}
		switch {
		case sends && i == 0:
			c.SendDepth = inFlight * sendDepth // if it is the only one, it has all messages
		case sends:
			c.SendDepth = sendDepth
		}
		q, err := s.Dev.CreateQP(s.PD, c)
		if err != nil {
			return 0, fmt.Errorf("QP %d of %d: %w", i+1, n, err)
		}
		s.QPs = append(s.QPs, q)
		a := qp.InitAttr{
			SQDepth: c.SendDepth, RQDepth: c.RecvDepth, MaxSendSGE: c.MaxSendSGE,
			MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline,
		}
		rings += a.Footprint()
	}
	return rings, nil
}

// createMRs registers n regions on both sides.
func (d *devices) createMRs(n int) error {
	if n == 0 {
		return nil
	}
	var areas [2]*roce.MR
	for i, s := range []*side{d.send, d.recv} {
		var err error
		if areas[i], err = s.AddMR(n*mrStride, rights); err != nil {
			return err
		}
	}
	before := heap()
	for i, s := range []*side{d.send, d.recv} {
		if err := s.createMRs(areas[i], n); err != nil {
			return err
		}
	}
	if n >= enough {
		d.size.mr = int(heap()-before) / (2 * n)
	}
	return nil
}

// createMRs registers n regions in area.
func (s *side) createMRs(area *roce.MR, n int) error {
	for i := range n {
		at := i*mrStride + i*mrSkew%mrStride
		mem := area.Bytes()[at : at+msgSize]
		mem[0] = 1 // take the page fault before the measurement
		m, err := s.PD.RegisterMR(mem, rights)
		if err != nil {
			return fmt.Errorf("memory region %d of %d: %w", i+1, n, err)
		}
		s.mrs = append(s.mrs, m)
	}
	return nil
}

// heap returns the bytes of live heap objects.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// setPrefetch sets the prefetch window of both devices.
func (d *devices) setPrefetch(window int) error {
	return errors.Join(d.Dev[0].SetPrefetch(window), d.Dev[1].SetPrefetch(window))
}
