package bench

import (
	"context"
	"errors"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

const (
	// The send queues are deep enough for the window, and not the queue, to be the limit. The
	// last work request of each batch is signaled.
	smallDepth, smallBatch = 1024, 32
	bulkDepth, bulkBatch   = 64, 4
	// In round trips, one work request of tripSignal is signaled.
	tripDepth, tripSignal = 64, 16
	recvDepth             = 64
	// streamRecvs are more than the SENDs outstanding, so that receives are always posted.
	streamRecvs    = 4 * bulkDepth
	pollBatch      = 64
	connectTimeout = 5 * time.Second
	// align puts the two buffers of a side on different cache lines.
	align = 64
)

// gorxe measures the operations of an RC QP. The measuring thread drives the device.
type gorxe struct {
	spec *spec
	dev  *roce.Device
	*endpoint.Endpoint

	out    int            // offset in MR of what this side sends; the peer writes to offset 0
	msg    [wordSize]byte // of a round trip
	remote roce.RemoteBuffer
	wcs    [pollBatch]roce.WC
	recvs  []roce.RecvWR // of round trips without memory: a WRITE with immediate needs none
	used   int           // entries of the send queue
}

// newGorxe creates the device on port, which it closes after an error.
func newGorxe(s *spec, port driver.Port) (*gorxe, error) {
	spin := idleSpin
	if s.Test == pingpong {
		spin = roce.NoSpin // a spinning test does not call Wait
	}
	dev, err := roce.New(port, append(s.Transport.Options(), roce.WithProgress(roce.Manual),
		roce.WithExpert(roce.Expert{Spin: spin}))...)
	if err != nil {
		return nil, err
	}
	g := &gorxe{spec: s, dev: dev, out: (s.Size + align - 1) / align * align}
	depth, _ := g.depth()
	recvs := recvDepth
	if s.Op == opSend {
		recvs = streamRecvs
	}
	g.recvs = make([]roce.RecvWR, recvs)
	g.Endpoint, err = endpoint.New(dev, endpoint.Config{
		QP:     roce.QPConfig{SendDepth: depth, RecvDepth: recvs},
		Memory: 2 * g.out, Access: roce.LocalWrite | roce.RemoteWrite |
			roce.RemoteRead,
	})
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return g, nil
}

// depth returns the depth of the send queue and the size of a batch.
func (g *gorxe) depth() (depth, batch int) {
	switch {
	case g.spec.Test == pingpong:
		return tripDepth, 1
	case g.spec.Size > int(g.spec.MTU):
		return bulkDepth, bulkBatch
	}
	return smallDepth, smallBatch
}

func (g *gorxe) hello() hello {
	return hello{Endpoint: g.QP.Local(), Buffer: g.MR.Remote(), Datapath: g.dev.Info().Datapath}
}

// close closes the device, and with it the endpoint.
func (g *gorxe) close() error { return g.dev.Close() }

func (g *gorxe) run(peer *hello, ready func(), h *halt) (outcome, error) {
	g.remote = peer.Buffer
	if g.spec.Op == opSend {
		for i := range g.recvs {
			g.recvs[i].SGEs = []roce.SGE{g.MR.SGE(0, g.spec.Size)}
		}
	}
	if g.spec.Op == opSend || g.spec.Test == pingpong && !g.spec.Spin {
		if err := g.postRecvs(len(g.recvs)); err != nil {
			return outcome{}, err
		}
	}
	ctx, cancel := context.WithTimeout(h.ctx, connectTimeout)
	defer cancel()
	if err := g.QP.Connect(ctx, peer.Endpoint, roce.ConnectOptions{MTU: g.spec.MTU}); err != nil {
		return outcome{}, err
	}
	ready()
	o, err := g.measure(h)
	o.Retransmits = g.dev.Counters().Retransmits
	return o, err
}

func (g *gorxe) measure(h *halt) (outcome, error) {
	switch {
	case g.spec.Test == stream && g.spec.Active:
		return g.send(h)
	case g.spec.Test == stream:
		return outcome{}, g.serve(h)
	case g.spec.Spin:
		return g.trips(h, g.spinFor)
	}
	return g.trips(h, g.waitFor)
}

var opcodes = map[operation]roce.Op{
	opWrite: roce.OpWrite, opRead: roce.OpRead, opSend: roce.OpSend,
}

// requests returns a batch of equal work requests, the last one signaled.
func (g *gorxe) requests(n int) []roce.SendWR {
	wrs := make([]roce.SendWR, n)
	for i := range wrs {
		wrs[i] = roce.SendWR{
			Op: opcodes[g.spec.Op], SGEs: []roce.SGE{g.MR.SGE(g.out, g.spec.Size)},
			RemoteAddr: g.remote.Addr, RKey: g.remote.RKey,
		}
	}
	wrs[n-1].Flags = roce.Signaled
	return wrs
}

// send posts work requests as fast as they complete. A completed one is delivered: the peer has
// acknowledged it.
func (g *gorxe) send(h *halt) (outcome, error) {
	depth, batch := g.depth()
	wrs := g.requests(batch)
	w := window{warmup: g.spec.Warmup}
	end := time.Now().Add(g.spec.Warmup + g.spec.Duration)
	for more := true; more || g.used > 0; {
		for more && g.used+batch <= depth {
			if err := g.QP.PostSend(wrs...); err != nil {
				return outcome{}, err
			}
			g.used += batch
		}
		n, err := g.CQ.Wait(h.ctx, g.wcs[:])
		if err != nil {
			return outcome{}, unlessHalted(h, err)
		}
		if err := g.check(n); err != nil {
			return outcome{}, err
		}
		g.used -= n * batch
		now := time.Now()
		w.add(now, uint64(n*batch))
		more = more && now.Before(end)
	}
	return w.outcome(), nil
}

// serve lets the device of the passive side work, and posts the receives of SENDs again.
func (g *gorxe) serve(h *halt) error {
	for {
		n, err := g.CQ.Wait(h.ctx, g.wcs[:])
		if err != nil {
			return unlessHalted(h, err)
		}
		if err := g.check(n); err != nil {
			return err
		}
		if err := g.postRecvs(n); err != nil {
			return err
		}
	}
}

// unlessHalted returns the error of a Wait, or nil if halt has ended the Wait.
func unlessHalted(h *halt, err error) error {
	if h.isSet() {
		return nil
	}
	return err
}

// check returns an error if one of the first n completions failed.
func (g *gorxe) check(n int) error {
	for i := range g.wcs[:n] {
		if g.wcs[i].Status != roce.Success {
			return endpoint.StatusError(&g.wcs[i])
		}
	}
	return nil
}
