package soak

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/verify"
	"github.com/gorxe/gorxe/roce"
)

const (
	srqDepth   = 64
	srqHonest  = 4
	srqVictims = 2
	srqSlot    = 2 << 10
)

// srqJob is a shared receive queue that honest and hostile peers use at the same time.
type srqJob struct {
	w              *world
	sv, cl         *endpoint.Endpoint
	grant          *guarded
	secret         *roce.MR
	honest         [srqHonest][2]*roce.QP // client, server
	want           map[roce.QPN][]message // by server QP
	victims        [srqVictims]*victim
	victimQPs      [srqVictims]*roce.QP
	posted         [srqDepth]bool
	missing, steps int
}

func (j *srqJob) open() (err error) {
	dev := j.w.tb.Dev
	j.want = map[roce.QPN][]message{}
	j.sv, err = endpoint.New(dev[0], endpoint.Config{QPs: -1, SendCQ: 256,
		QP:     roce.QPConfig{SendDepth: depth},
		RecvCQ: 4 * srqDepth, SRQ: &roce.SRQConfig{Depth: srqDepth}, Memory: srqDepth * srqSlot})
	if err != nil {
		return err
	}
	j.cl, err = endpoint.New(dev[1], endpoint.Config{QPs: -1, SendCQ: 256,
		QP: roce.QPConfig{SendDepth: depth, RecvDepth: 1}, Memory: arena})
	if err != nil {
		return err
	}
	if j.secret, err = j.sv.AddMR(granted, roce.LocalWrite); err != nil {
		return err
	}
	if j.grant, err = newGuarded(j.sv.PD, endpoint.AllRemote); err != nil {
		return err
	}
	for i := range srqDepth {
		if err := j.post(i); err != nil {
			return err
		}
	}
	return nil
}

func (j *srqJob) post(slot int) error {
	if j.posted[slot] {
		return fmt.Errorf("receive %d of the SRQ completed twice", slot)
	}
	j.posted[slot] = true
	return j.sv.SRQ.PostRecv(roce.RecvWR{ID: uint64(slot),
		SGEs: []roce.SGE{j.sv.MR.SGE(slot*srqSlot, srqSlot)}})
}

// add creates a queue pair on an endpoint's SRQ and completion queues.
func (j *srqJob) add(e *endpoint.Endpoint, t roce.QPType) (*roce.QP, error) {
	j.w.n[qps].Add(1)
	return e.Dev.CreateQP(e.PD, roce.QPConfig{Type: t, SendCQ: e.CQ, RecvCQ: e.RecvCQ, SRQ: e.SRQ,
		SendDepth: depth, RecvDepth: 1})
}

func (j *srqJob) step(r *rand.Rand) error {
	if j.sv == nil {
		if err := j.open(); err != nil {
			return err
		}
	}
	if j.steps++; j.steps%4 == 0 {
		if err := j.sv.SRQ.SetLimit(srqDepth - 4); err != nil {
			return err
		}
	}
	if err := j.renew(r); err != nil {
		return err
	}
	for _, v := range j.victims {
		if err := j.w.fire(r, v); err != nil {
			return err
		}
	}
	if err := j.sendAll(r); err != nil {
		return err
	}
	if err := j.receiveAll(); err != nil {
		return err
	}
	if err := j.renewVictims(r); err != nil {
		return err
	}
	return errors.Join(empty(j.secret.Bytes()), j.grant.check())
}

// renew creates missing queue pairs, and now and then replaces an honest one.
func (j *srqJob) renew(r *rand.Rand) error {
	for i := range j.honest {
		h := &j.honest[i]
		if h[0] != nil && r.IntN(16) == 0 {
			delete(j.want, h[1].QPN())
			if err := errors.Join(h[0].Close(), h[1].Close()); err != nil {
				return err
			}
			h[0] = nil
		}
		if h[0] != nil {
			continue
		}
		var err error
		if h[0], err = j.add(j.cl, roce.RC); err != nil {
			return err
		}
		if h[1], err = j.add(j.sv, roce.RC); err != nil {
			return err
		}
		ctx, cancel := j.w.wait()
		o := options(r)
		err = errors.Join(h[1].Connect(ctx, h[0].Local(), o), h[0].Connect(ctx, h[1].Local(), o))
		cancel()
		if err != nil {
			return err
		}
	}
	for i := range j.victims {
		if j.victims[i] != nil {
			continue
		}
		q, err := j.add(j.sv, []roce.QPType{roce.RC, roce.RC, roce.UC, roce.UD}[r.IntN(4)])
		if err != nil {
			return err
		}
		if j.victims[i], err = j.w.newVictim(r, j.sv, q, j.grant, j.secret); err != nil {
			return err
		}
		j.victimQPs[i] = q
	}
	return nil
}

// sendAll posts messages on all honest connections.
func (j *srqJob) sendAll(r *rand.Rand) error {
	b := &batch{}
	sent := 0
	for _, h := range j.honest {
		for range r.IntN(6) {
			n := r.IntN(srqSlot)
			at := b.take(n)
			data := j.cl.MR.Bytes()[at : at+n]
			fill(r, data)
			m := message{Message: verify.Message{Op: roce.OpSendImm, Len: n, Imm: r.Uint32(),
				SrcQP: h[0].QPN()},
				data: bytes.Clone(data)}
			if err := h[0].PostSend(roce.SendWR{Op: m.Op, Imm: m.Imm, Flags: roce.Signaled,
				SGEs: []roce.SGE{j.cl.MR.SGE(at, n)}}); err != nil {
				return err
			}
			j.want[h[1].QPN()] = append(j.want[h[1].QPN()], m)
			j.missing++
			sent++
		}
	}
	// The receives must be posted again while the senders wait.
	done := make(chan error, 1)
	go func() { done <- j.w.sends(j.cl.CQ, sent) }()
	return errors.Join(j.receiveAll(), <-done)
}

// receiveAll receives until no message of an honest peer is missing.
func (j *srqJob) receiveAll() error {
	ctx, cancel := j.w.wait()
	defer cancel()
	var wcs [srqDepth]roce.WC
	for {
		n := j.sv.RecvCQ.Poll(wcs[:])
		if n == 0 && j.missing == 0 {
			return nil
		}
		if n == 0 {
			var err error
			if n, err = j.sv.RecvCQ.Wait(ctx, wcs[:]); err != nil {
				return fmt.Errorf("%d messages of honest peers are missing: %w", j.missing, err)
			}
		}
		for i := range wcs[:n] {
			if err := j.received(&wcs[i]); err != nil {
				return err
			}
		}
	}
}

func (j *srqJob) received(wc *roce.WC) error {
	slot := int(wc.ID)
	if !j.posted[slot] {
		return fmt.Errorf("receive %d of the SRQ completed twice", slot)
	}
	j.posted[slot] = false
	want, honest := j.want[wc.QPN]
	if !honest {
		j.w.n[srqHostile].Add(1)
		return j.post(slot)
	}
	if err := endpoint.StatusError(wc); err != nil {
		return err
	}
	if len(want) == 0 {
		return errors.New("unexpected message of an honest peer")
	}
	m := &want[0]
	if wrong := verify.Receive(wc, &m.Message); wrong != "" {
		return errors.New(wrong)
	}
	if !bytes.Equal(j.sv.MR.Bytes()[slot*srqSlot:][:m.Len], m.data) {
		return fmt.Errorf("data of a message of %d bytes differ", m.Len)
	}
	j.want[wc.QPN] = want[1:]
	j.missing--
	j.w.n[srqMessages].Add(1)
	return j.post(slot)
}

// renewVictims closes victims in state ERR, and now and then others. Then no receive of the SRQ may
// be missing.
func (j *srqJob) renewVictims(r *rand.Rand) error {
	for i, q := range j.victimQPs {
		if q.State() == roce.StateErr {
			j.w.n[victimsKilled].Add(1)
		} else if r.IntN(8) != 0 {
			continue
		}
		if err := q.Close(); err != nil {
			return err
		}
		j.victims[i], j.victimQPs[i] = nil, nil
	}
	if j.victims[0] != nil || j.victims[1] != nil {
		return nil
	}
	if err := j.receiveAll(); err != nil {
		return err
	}
	if n := j.sv.SRQ.Len(); n != srqDepth {
		return fmt.Errorf("%d of %d receives are left in the SRQ, and no QP uses any", n, srqDepth)
	}
	return nil
}

func (j *srqJob) close() error {
	if j.sv == nil {
		return nil
	}
	var errs []error
	for _, h := range j.honest {
		for _, q := range h {
			if q != nil {
				errs = append(errs, q.Close())
			}
		}
	}
	for _, q := range j.victimQPs {
		if q != nil {
			errs = append(errs, q.Close())
		}
	}
	if j.grant != nil {
		errs = append(errs, j.grant.Close())
	}
	errs = append(errs, j.sv.Close())
	if j.cl != nil {
		errs = append(errs, j.cl.Close())
	}
	return errors.Join(errs...)
}
