package bench

import (
	"encoding/binary"
	"time"

	"github.com/gorxe/gorxe/roce"
)

// trips exchanges numbered messages with the peer: each is answered by one with the same number.
// await waits for message i and returns false if halt was set.
func (g *gorxe) trips(h *halt, await func(h *halt, i uint64) (bool, error)) (outcome, error) {
	t := newTrips(g.spec)
	wr := g.requests(1)
	wr[0].SGEs, wr[0].Inline = nil, g.msg[:] // inline, as ib_write_lat sends
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

// post sends message i. One message of tripSignal is signaled; then post takes the completions.
func (g *gorxe) post(wr []roce.SendWR, i uint64) error {
	wr[0].Flags = 0
	if i%tripSignal == 0 {
		wr[0].Flags = roce.Signaled
	}
	binary.NativeEndian.PutUint64(g.msg[:], i)
	g.used++
	if err := g.QP.PostSend(wr...); err != nil {
		return err
	}
	if g.used%tripSignal != 0 && g.used < tripDepth {
		return nil
	}
	return g.awaitSlot()
}

// awaitSlot waits until another message can be posted.
func (g *gorxe) awaitSlot() error {
	for deadline := time.Now().Add(connectTimeout); ; {
		n := g.CQ.Poll(g.wcs[:])
		if err := g.reap(n); err != nil {
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

// reap handles the first n completions, and posts the completed receives again.
func (g *gorxe) reap(n int) error {
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
	return g.postRecvs(recvs)
}

func (g *gorxe) postRecvs(n int) error {
	if n == 0 {
		return nil
	}
	return g.QP.PostRecv(g.recvs[:n]...)
}

// spinFor polls the memory until message i has arrived.
func (g *gorxe) spinFor(h *halt, i uint64) (bool, error) {
	const checkEvery = 64 * haltEvery // a broken connection shows only in the completions
	for polls := 1; g.MR.Load64(0) != i; polls++ {
		g.dev.Progress()
		if polls%haltEvery == 0 && h.isSet() {
			return false, nil
		}
		if polls%checkEvery == 0 {
			if err := g.reap(g.CQ.Poll(g.wcs[:])); err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// waitFor sleeps until the immediate data of message i completes a receive.
func (g *gorxe) waitFor(h *halt, i uint64) (bool, error) {
	for g.MR.Load64(0) != i {
		n, err := g.CQ.Wait(h.ctx, g.wcs[:])
		if err != nil {
			return false, unlessHalted(h, err)
		}
		if err := g.reap(n); err != nil {
			return false, err
		}
	}
	return true, nil
}
