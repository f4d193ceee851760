package deterministic

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/testbed"
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

// urgent sends small messages of a class beside bulk traffic of class 0, and returns
// how long each took until its acknowledgment, in seconds, and the goodput of the bulk traffic in
// Mb/s.
func (b *bench) urgent(ctx context.Context, class int) (times []float64, mbps float64, err error) {
	bed, err := testbed.New(b.realTime(linkRate, nil))
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, bed.Close()) }()
	bulk, err := connected(ctx, bed, 0, endpoint.Config{QPs: bulkQPs, Memory: bulkWrite,
		QP: roce.QPConfig{SendDepth: bulkDepth}})
	if err != nil {
		return nil, 0, err
	}
	ping, err := connected(ctx, bed, class, endpoint.Config{Memory: urgentSize})
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, b.Duration)
	defer cancel()
	done := make(chan error, 1)
	bytes := 0
	start := time.Now()
	go func() {
		var err error
		bytes, err = flood(ctx, bulk)
		done <- err
	}()
	times, err = pings(ctx, ping)
	err = errors.Join(err, <-done)
	return times, float64(bytes) * 8 / time.Since(start).Seconds() / 1e6, err
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

// flood keeps all queue pairs busy until ctx ends, and returns the bytes that were sent.
func flood(ctx context.Context, e [2]*endpoint.Endpoint) (bytes int, err error) {
	for qp := range e[0].QPs {
		for range bulkDepth {
			if err := write(e, qp); err != nil {
				return 0, err
			}
		}
	}
	var wcs [32]roce.WC
	for {
		n, err := e[0].CQ.Wait(ctx, wcs[:])
		if ctx.Err() != nil {
			return bytes, nil
		}
		if err != nil {
			return bytes, err
		}
		for i := range wcs[:n] {
			if err := endpoint.StatusError(&wcs[i]); err != nil {
				return bytes, err
			}
			bytes += bulkWrite
			if err := write(e, int(wcs[i].ID)); err != nil {
				return bytes, err
			}
		}
	}
}

// pings sends a message after the other until ctx ends.
func pings(ctx context.Context, e [2]*endpoint.Endpoint) (times []float64, err error) {
	tick := time.NewTicker(urgentInterval)
	defer tick.Stop()
	var wcs [1]roce.WC
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return times, nil
		}
		start := time.Now()
		if err := write(e, 0); err != nil {
			return times, err
		}
		if _, err := e[0].CQ.Wait(ctx, wcs[:]); err != nil {
			if ctx.Err() != nil {
				return times, nil
			}
			return times, err
		}
		if err := endpoint.StatusError(&wcs[0]); err != nil {
			return times, err
		}
		times = append(times, time.Since(start).Seconds())
	}
}

// percentile returns a percentile of sorted times.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(p*float64(len(sorted))))]
}
