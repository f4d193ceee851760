package deterministic

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
	"github.com/gorxe/gorxe/papers/kit"
	"github.com/gorxe/gorxe/roce"
)

// The experiment "class 7": small messages beside bulk traffic in real time.
const (
	urgentSize     = 64
	urgentInterval = 200 * time.Microsecond
	bulkQPs        = 4
	bulkDepth      = 8
	bulkWrite      = 64 << 10
)

// setting is a link for the experiment, and what the devices know of it.
type setting struct {
	rate int64 // of the link in bits per second; 0: limited by the processors
	told int64 // rate that the devices are told if there are classes; 0: what the port reports
}

// urgent sends small messages of a class beside bulk traffic of class 0, and returns how long each
// took until its acknowledgment, in seconds, and the goodput of the bulk traffic in Mb/s. A thread
// drives each device, so that no thread has to be woken up.
func (b *bench) urgent(ctx context.Context, class int, set setting) (times []float64, mbps float64,
	err error) {
	o := []roce.Option{roce.WithProgress(roce.Manual)}
	if class > 0 && set.told > 0 {
		o = append(o, roce.WithLinkRate(set.told))
	}
	bed, err := testbed.New(testbed.Config{Veth: b.Link == kit.Veth, Rate: set.rate, Options: o})
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	u := urgentRun{length: b.Duration}
	if u.bulk, err = connected(ctx, bed, 0, endpoint.Config{QPs: bulkQPs, Memory: bulkWrite,
		QP: roce.QPConfig{SendDepth: bulkDepth}}); err != nil {
		return nil, 0, err
	}
	if u.ping, err = connected(ctx, bed, class, endpoint.Config{Memory: urgentSize}); err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	receiver := kit.GoOnCPU(b.CPUs[1], func() error {
		for ctx.Err() == nil {
			bed.Dev[1].Progress()
		}
		return nil
	})
	err = kit.OnCPU(b.CPUs[0], func() error { return u.run(ctx) })
	cancel()
	err = errors.Join(err, <-receiver)
	return u.times, float64(u.bytes) * 8 / u.took.Seconds() / 1e6, err
}

// urgentRun is the sender of the experiment.
type urgentRun struct {
	bulk, ping [2]*endpoint.Endpoint
	length     time.Duration

	times []float64
	bytes int
	took  time.Duration
}

// run keeps all queue pairs busy, and sends a small message from time to time.
func (u *urgentRun) run(ctx context.Context) error {
	for qp := range u.bulk[0].QPs {
		for range bulkDepth {
			if err := write(u.bulk, qp); err != nil {
				return err
			}
		}
	}
	var wcs [32]roce.WC
	begin := time.Now()
	posted := begin
	waiting := false
	for u.took = 0; u.took < u.length && ctx.Err() == nil; u.took = time.Since(begin) {
		for i := range wcs[:u.bulk[0].CQ.Poll(wcs[:])] {
			if err := endpoint.StatusError(&wcs[i]); err != nil {
				return err
			}
			u.bytes += bulkWrite
			if err := write(u.bulk, int(wcs[i].ID)); err != nil {
				return err
			}
		}
		switch {
		case waiting && u.ping[0].CQ.Poll(wcs[:1]) > 0:
			if err := endpoint.StatusError(&wcs[0]); err != nil {
				return err
			}
			u.times = append(u.times, time.Since(posted).Seconds())
			waiting = false
		case !waiting && time.Since(posted) >= urgentInterval:
			posted, waiting = time.Now(), true
			if err := write(u.ping, 0); err != nil {
				return err
			}
		}
	}
	return context.Cause(ctx)
}

// connected returns connected endpoints of both devices.
func connected(ctx context.Context, bed *testbed.Testbed, class int, c endpoint.Config) (
	e [2]*endpoint.Endpoint, err error) {
	c.QP.Class = class
	for i, dev := range bed.Dev {
		if e[i], err = endpoint.New(dev, c); err != nil {
			return e, err
		}
	}
	return e, endpoint.Connect(ctx, e[0], e[1], roce.ConnectOptions{MTU: pathMTU})
}

// write posts a WRITE of all memory of the first endpoint.
func write(e [2]*endpoint.Endpoint, qp int) error {
	remote := e[1].MR.Remote()
	return e[0].QPs[qp].PostSend(roce.SendWR{ID: uint64(qp), Op: roce.OpWrite,
		Flags: roce.Signaled, SGEs: []roce.SGE{e[0].MR.SGE(0, e[0].MR.Len())},
		RemoteAddr: remote.Addr, RKey: remote.RKey})
}

// percentile returns a percentile of sorted times.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}
