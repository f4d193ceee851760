package scale

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce"
)

const (
	linkMemory = "memory"
	linkVeth   = "veth"

	// underWay is how many bursts a lane has in flight, whatever its QPs, and each on a QP of its own where there are as
	// many. So all lanes have the same packets a message: with several messages of a QP in flight one ACK would do for all, and 64 QPs
	// would win by that alone.
	underWay = 32
	// sendDepth is each QP's send queue.
	sendDepth = 32
	// mrStride puts every region on a page of its own, and mrSkew at another place in it, as programs' buffers are.
	mrStride, mrSkew = 4096, 64

	connectTime = 30 * time.Second
)

// world is two devices that are connected by many QPs; a sends.
type world struct {
	link     string
	datapath string
	a, b     *end
	stop     []func() error
	slot     target        // of the first QP, in mem; the others follow
	targets  []target      // for each MR
	made     time.Duration // how long it took to make the QPs and MRs
	size     footprint

	interrupted atomic.Bool // the user has seen enough
}

// target says where a message comes from and where it goes.
type target struct {
	src roce.SGE
	dst uint64
	key roce.RKey
}

// footprint is what a QP and an MR take of the Go heap, in bytes, as a mean over both ends: a QP beyond the rings that its owner
// asks for, an MR beyond its memory. 0: there were too few to tell.
type footprint struct{ qp, mr int }

// manyEnough is how many objects have a mean that says something: what all share does not count then.
const manyEnough = 1024

func (f footprint) String() string {
	var s string
	if f.qp > 0 {
		s += fmt.Sprintf("; %d bytes a QP beyond its rings", f.qp)
	}
	if f.mr > 0 {
		s += fmt.Sprintf("; %d bytes an MR beyond its memory", f.mr)
	}
	return s
}

// end is one device with what was made on it.
type end struct {
	dev *roce.Device
	pd  *roce.PD
	cq  *roce.CQ
	mem *roce.MR // what QPs send and are written: msgSize for each
	qps []*roce.QP
	mrs []*roce.MR
	cpu int
}

func newWorld(ctx context.Context, link string, qps, mrs int, cpus []int) (*world, error) {
	w := &world{link: link}
	err := w.build(ctx, qps, mrs, cpus)
	if err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) build(ctx context.Context, qps, mrs int, cpus []int) error {
	ports, remove, err := kit.OpenLink(w.link == linkVeth, 0)
	if err != nil {
		return err
	}
	w.stop = append(w.stop, remove)
	var ends [2]*end
	for i := range ends {
		ends[i] = &end{cpu: cpus[i]}
		// The ports belong to the devices from here on.
		if ends[i].dev, err = roce.New(ports[i], roce.WithProgress(roce.Manual), roce.WithExpert(roce.Expert{MaxQP: maxCount, MaxMR: maxCount + 2})); err != nil {
			if i == 0 {
				err = errors.Join(err, ports[1].Close())
			}
			return err
		}
		w.stop = append(w.stop, ends[i].dev.Close)
	}
	w.a, w.b = ends[0], ends[1]
	w.datapath = w.a.dev.Info().Datapath
	start := time.Now()
	if err := w.makeQPs(ctx, qps); err != nil {
		return err
	}
	if err := w.makeMRs(mrs); err != nil {
		return err
	}
	w.slot = target{w.a.mem.SGE(0, msgSize), w.b.mem.Addr(), w.b.mem.RKey()}
	for i := range mrs {
		w.targets = append(w.targets, target{w.a.mrs[i].SGE(0, msgSize), w.b.mrs[i].Addr(), w.b.mrs[i].RKey()})
	}
	w.made = time.Since(start)
	return nil
}

// makeQPs makes both ends' QPs and connects them.
func (w *world) makeQPs(ctx context.Context, n int) error {
	rings := 0
	for _, e := range []*end{w.a, w.b} {
		if err := e.prepare(n); err != nil {
			return err
		}
	}
	before := heap()
	for _, e := range []*end{w.a, w.b} {
		bytes, err := e.makeQPs(n, e == w.a)
		if err != nil {
			return err
		}
		rings += bytes
	}
	if err := w.connect(ctx); err != nil {
		return err
	}
	if n >= manyEnough {
		w.size.qp = (int(heap()-before) - rings) / (2 * n)
	}
	return nil
}

// makeMRs registers both ends' regions.
func (w *world) makeMRs(n int) error {
	if n == 0 {
		return nil
	}
	var areas [2]*roce.MR
	for i, e := range []*end{w.a, w.b} {
		var err error
		if areas[i], err = e.pd.AllocMR(n*mrStride, rights); err != nil {
			return err
		}
	}
	before := heap()
	for i, e := range []*end{w.a, w.b} {
		if err := e.makeMRs(areas[i], n); err != nil {
			return err
		}
	}
	if n >= manyEnough {
		w.size.mr = int(heap()-before) / (2 * n)
	}
	return nil
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// rights of all regions.
const rights = roce.LocalWrite | roce.RemoteWrite

// prepare makes what n QPs of an end share.
func (e *end) prepare(n int) (err error) {
	if e.pd, err = e.dev.AllocPD(); err != nil {
		return err
	}
	if e.mem, err = e.pd.AllocMR(n*msgSize, rights); err != nil {
		return err
	}
	e.cq, err = e.dev.CreateCQ(2 * underWay)
	return err
}

// makeQPs makes an end's QPs, and says how many bytes their rings take.
func (e *end) makeQPs(n int, active bool) (rings int, err error) {
	for i := range n {
		c := roce.QPConfig{SendCQ: e.cq, SendDepth: 1, RecvDepth: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 1}
		if active {
			if c.SendDepth = sendDepth; i == 0 {
				c.SendDepth = underWay * sendDepth // alone it holds all
			}
		}
		q, err := e.dev.CreateQP(e.pd, c)
		if err != nil {
			return 0, fmt.Errorf("QP %d of %d: %w", i+1, n, err)
		}
		e.qps = append(e.qps, q)
		a := qp.InitAttr{SQDepth: c.SendDepth, RQDepth: c.RecvDepth, MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline}
		rings += a.Footprint()
	}
	return rings, nil
}

// makeMRs registers n regions in an area.
func (e *end) makeMRs(area *roce.MR, n int) error {
	for i := range n {
		at := i*mrStride + i*mrSkew%mrStride
		mem := area.Bytes()[at : at+msgSize]
		mem[0] = 1 // the page is there before anything is measured
		m, err := e.pd.RegisterMR(mem, rights)
		if err != nil {
			return fmt.Errorf("memory region %d of %d: %w", i+1, n, err)
		}
		e.mrs = append(e.mrs, m)
	}
	return nil
}

// connect brings all pairs of QPs to RTS.
func (w *world) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	for i := range w.a.qps {
		qa, qb := w.a.qps[i], w.b.qps[i]
		err := qa.Connect(ctx, qb.Local(), roce.ConnectOptions{})
		if err == nil {
			err = qb.Connect(ctx, qa.Local(), roce.ConnectOptions{})
		}
		if err != nil {
			return fmt.Errorf("connect QP %d: %w", i+1, err)
		}
	}
	return nil
}

// prefetch sets both ends' windows.
func (w *world) prefetch(window int) error {
	return errors.Join(w.a.dev.SetPrefetch(window), w.b.dev.SetPrefetch(window))
}

// close takes all apart. Devices go before the memory that they reach, and before their links.
func (w *world) close() error {
	var err error
	if w.a != nil && w.b != nil {
		err = errors.Join(w.a.dev.Close(), w.b.dev.Close())
	}
	for i := len(w.stop) - 1; i >= 0; i-- {
		err = errors.Join(err, w.stop[i]())
	}
	return err
}

// quiet keeps the collector away while something is measured; the data path allocates nothing.
func quiet() (restore func()) {
	old := debug.SetGCPercent(-1)
	return func() { debug.SetGCPercent(old) }
}
