package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

const (
	// Send queues: deep enough that the window, not the queue, is the limit. The last of each batch is signalled.
	smallDepth, smallBatch = 1024, 32
	bulkDepth, bulkBatch   = 64, 4
	// Round trips: one work request in so many is signalled.
	tripDepth, tripSignal = 64, 16
	recvDepth             = 64
	pollBatch             = 64
	connectTime           = 5 * time.Second
	// align keeps the two buffers of a side on cache lines of their own.
	align = 64
)

// gorxe is the real thing: WRITEs of an RC QP, the measuring thread drives the device.
type gorxe struct {
	spec *spec
	port driver.Port // until the device has it
	dev  *roce.Device
	pd   *roce.PD
	mr   *roce.MR // what the peer writes, then what this side sends
	cq   *roce.CQ
	qp   *roce.QP

	out    int            // offset in mr
	word   [wordSize]byte // of a round trip
	remote roce.RemoteBuffer
	wcs    [pollBatch]roce.WC
	recvs  [recvDepth]roce.RecvWR // without memory: an immediate needs none
	used   int                    // of the send queue
}

func newGorxe(s *spec, port driver.Port) (*gorxe, error) {
	g := &gorxe{spec: s, port: port}
	if err := g.build(); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *gorxe) build() (err error) {
	spin := idleSpin
	if g.spec.Test == pingpong {
		spin = roce.NoSpin // a spinning test does not call Wait
	}
	port := g.port
	g.port = nil
	if g.dev, err = roce.New(port, roce.WithProgress(roce.Manual), roce.WithExpert(roce.Expert{Spin: spin})); err != nil {
		return err
	}
	if g.pd, err = g.dev.AllocPD(); err != nil {
		return err
	}
	g.out = (g.spec.Size + align - 1) / align * align
	if g.mr, err = g.pd.AllocMR(2*g.out, roce.LocalWrite|roce.RemoteWrite); err != nil {
		return err
	}
	depth, _ := g.depth()
	if g.cq, err = g.dev.CreateCQ(depth + recvDepth); err != nil {
		return err
	}
	g.qp, err = g.dev.CreateQP(g.pd, roce.QPConfig{SendCQ: g.cq, SendDepth: depth, RecvDepth: recvDepth})
	return err
}

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
	return hello{Endpoint: g.qp.Local(), Buffer: g.mr.Remote(), Datapath: g.dev.Info().Datapath}
}

// close leaves the taking apart to the device.
func (g *gorxe) close() error {
	if g.port != nil {
		return g.port.Close()
	}
	if g.dev != nil {
		return g.dev.Close()
	}
	return nil
}

func (g *gorxe) run(peer *hello, ready func(), h *halt) (outcome, error) {
	g.remote = peer.Buffer
	if g.spec.Test == pingpong && !g.spec.Spin {
		if err := g.fillRecvs(recvDepth); err != nil {
			return outcome{}, err
		}
	}
	ctx, cancel := context.WithTimeout(h.ctx, connectTime)
	defer cancel()
	if err := g.qp.Connect(ctx, peer.Endpoint, roce.ConnectOptions{MTU: g.spec.MTU}); err != nil {
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
		return g.pour(h)
	case g.spec.Test == stream:
		return outcome{}, g.serve(h)
	case g.spec.Spin:
		return g.trips(h, g.arrived)
	}
	return g.trips(h, g.announced)
}

// writes prepares a batch of equal WRITEs, the last one signalled.
func (g *gorxe) writes(n int) []roce.SendWR {
	wrs := make([]roce.SendWR, n)
	for i := range wrs {
		wrs[i] = roce.SendWR{
			Op: roce.OpWrite, SGEs: []roce.SGE{g.mr.SGE(g.out, g.spec.Size)},
			RemoteAddr: g.remote.Addr, RKey: g.remote.RKey,
		}
	}
	wrs[n-1].Flags = roce.Signaled
	return wrs
}

// pour posts WRITEs as fast as they complete. What is complete is delivered: the peer has acknowledged it.
func (g *gorxe) pour(h *halt) (outcome, error) {
	depth, batch := g.depth()
	wrs := g.writes(batch)
	w := window{warmup: g.spec.Warmup}
	end := time.Now().Add(g.spec.Warmup + g.spec.Duration)
	for more := true; more || g.used > 0; {
		for more && g.used+batch <= depth {
			if err := g.qp.PostSend(wrs...); err != nil {
				return outcome{}, err
			}
			g.used += batch
		}
		n, err := g.cq.Wait(h.ctx, g.wcs[:])
		if err != nil {
			return outcome{}, g.waitError(h, err)
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

// waitError hides the error of a Wait that was told to end.
func (g *gorxe) waitError(h *halt, err error) error {
	if h.now() {
		return nil
	}
	return err
}

func (g *gorxe) check(n int) error {
	for i := range g.wcs[:n] {
		if g.wcs[i].Status != roce.Success {
			return session.StatusError(&g.wcs[i])
		}
	}
	return nil
}

// serve lets the device work: a passive side has nothing to do itself.
func (g *gorxe) serve(h *halt) error {
	n, err := g.cq.Wait(h.ctx, g.wcs[:])
	if err != nil {
		return g.waitError(h, err)
	}
	return g.check(n)
}

// trips exchanges messages with the peer, each answered by one of the same number. await returns when message i is there,
// or false when it is time to end.
func (g *gorxe) trips(h *halt, await func(h *halt, i uint64) (bool, error)) (outcome, error) {
	t := newTrips(g.spec)
	wr := g.writes(1)
	wr[0].SGEs, wr[0].Inline = nil, g.word[:] // as ib_write_lat does
	if !g.spec.Spin {
		wr[0].Op = roce.OpWriteImm
	}
	for i := uint64(1); ; i++ {
		if g.spec.Active {
			if err := g.post(wr, i); err != nil {
				return outcome{}, err
			}
		}
		ok, err := await(h, i)
		if err != nil || !ok {
			return t.outcome(), err
		}
		if !g.spec.Active {
			if err := g.post(wr, i); err != nil {
				return outcome{}, err
			}
		} else if t.done() {
			return t.outcome(), nil
		}
	}
}

// post sends message i. Now and then it asks for a completion, and takes the earlier ones.
func (g *gorxe) post(wr []roce.SendWR, i uint64) error {
	wr[0].Flags = 0
	if i%tripSignal == 0 {
		wr[0].Flags = roce.Signaled
	}
	binary.NativeEndian.PutUint64(g.word[:], i)
	g.used++
	if err := g.qp.PostSend(wr...); err != nil {
		return err
	}
	return g.makeRoom()
}

// makeRoom waits until another message can be posted.
func (g *gorxe) makeRoom() error {
	if g.used%tripSignal != 0 && g.used < tripDepth {
		return nil
	}
	for deadline := time.Now().Add(connectTime); ; {
		n := g.cq.Poll(g.wcs[:])
		if err := g.take(n); err != nil {
			return err
		}
		if g.used < tripDepth {
			return nil
		}
		if time.Now().After(deadline) {
			return errLost
		}
	}
}

// take counts completions, and gives the receives among them back.
func (g *gorxe) take(n int) error {
	if err := g.check(n); err != nil {
		return err
	}
	recvs := 0
	for i := range g.wcs[:n] {
		if g.wcs[i].Opcode == roce.WCRecvWriteImm {
			recvs++
		} else {
			g.used -= tripSignal
		}
	}
	return g.fillRecvs(recvs)
}

func (g *gorxe) fillRecvs(n int) error {
	if n == 0 {
		return nil
	}
	return g.qp.PostRecv(g.recvs[:n]...)
}

// arrived looks at the memory until message i is there.
func (g *gorxe) arrived(h *halt, i uint64) (bool, error) {
	for turns := 1; g.mr.Load64(0) != i; turns++ {
		g.dev.Progress()
		if turns%lookEvery == 0 && h.now() {
			return false, nil
		}
		if turns%(64*lookEvery) == 0 { // it takes too long: has the connection broken?
			if err := g.take(g.cq.Poll(g.wcs[:])); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// announced sleeps until the immediate of message i completes a receive.
func (g *gorxe) announced(h *halt, i uint64) (bool, error) {
	for g.mr.Load64(0) != i {
		n, err := g.cq.Wait(h.ctx, g.wcs[:])
		if err != nil {
			return false, g.waitError(h, err)
		}
		if err := g.take(n); err != nil {
			return false, err
		}
	}
	return true, nil
}
