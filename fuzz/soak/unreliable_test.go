package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

const (
	qkey = roce.QKey(0x50a4)
	// quiet is how long nothing must arrive before missing messages count as lost.
	quiet = 30 * time.Millisecond
	// head is the length of what describes a message: its length and the seed of its data.
	head = 16
	// maxRounds is the largest number of bursts of UC messages on a connection.
	maxRounds = 10
)

// stamp fills b with data that describe themselves.
func stamp(r *rand.Rand, b []byte) {
	seed := r.Uint64()
	binary.LittleEndian.PutUint64(b, seed)
	binary.LittleEndian.PutUint64(b[8:], uint64(len(b)))
	fill(rand.New(rand.NewPCG(seed, 0)), b[head:])
}

// stamped checks data that stamp made.
func stamped(b []byte) error {
	if len(b) < head || binary.LittleEndian.Uint64(b[8:]) != uint64(len(b)) {
		return fmt.Errorf("a message of %d bytes has another length in its data", len(b))
	}
	want := make([]byte, len(b)-head)
	fill(rand.New(rand.NewPCG(binary.LittleEndian.Uint64(b), 0)), want)
	if !bytes.Equal(b[head:], want) {
		return fmt.Errorf("data of a message of %d bytes differ", len(b))
	}
	return nil
}

// lossy creates two queue pairs of an unreliable transport, with receives at the server.
func (w *world) lossy(r *rand.Rand, t roce.QPType) (cl, sv *endpoint.Endpoint, err error) {
	gid := r.IntN(len(w.tb.Dev[0].GIDs()))
	qc := roce.QPConfig{Type: t, SendDepth: slots, RecvDepth: slots, GIDIndex: &gid}
	cl, err = endpoint.New(w.tb.Dev[1], endpoint.Config{QP: qc, Memory: slots * slotLen})
	if err != nil {
		return nil, nil, err
	}
	sc := endpoint.Config{QP: qc, RecvCQ: 2 * slots, Memory: slots * slotLen}
	if r.IntN(2) == 0 {
		sc.SRQ = &roce.SRQConfig{Depth: slots}
	}
	sv, err = endpoint.New(w.tb.Dev[0], sc)
	if err != nil {
		return nil, nil, errors.Join(err, cl.Close())
	}
	w.n[qps].Add(2)
	w.n[regions].Add(2)
	return cl, sv, nil
}

func post(e *endpoint.Endpoint, slot int) error {
	wr := roce.RecvWR{ID: uint64(slot), SGEs: []roce.SGE{e.MR.SGE(slot*slotLen, slotLen)}}
	if e.SRQ != nil {
		return e.SRQ.PostRecv(wr)
	}
	return e.QP.PostRecv(wr)
}

// sends waits for the completions of n signaled work requests.
func (w *world) sends(cq *roce.CQ, n int) error {
	ctx, cancel := w.wait()
	defer cancel()
	for range n {
		wc, err := next(ctx, cq)
		if err := errors.Join(err, endpoint.StatusError(&wc)); err != nil {
			return err
		}
	}
	return nil
}

// arrivals calls f for every receive that completes until nothing arrives anymore.
func (w *world) arrivals(cq *roce.CQ, f func(*roce.WC) error) error {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), quiet)
		wc, err := next(ctx, cq)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return nil
		}
		if err := errors.Join(err, endpoint.StatusError(&wc)); err != nil {
			return err
		}
		if err := f(&wc); err != nil {
			return err
		}
	}
}

// datagrams sends UD messages.
func (w *world) datagrams(r *rand.Rand) (err error) {
	cl, sv, err := w.lossy(r, roce.UD)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.Close(), sv.Close()) }()
	for i := range slots {
		if err := post(sv, i); err != nil {
			return err
		}
	}
	if err := errors.Join(cl.QP.Activate(qkey), sv.QP.Activate(qkey)); err != nil {
		return err
	}
	ctx, cancel := w.wait()
	defer cancel()
	index := cl.QP.Local().GID
	var gid int
	for _, g := range w.tb.Dev[1].GIDs() {
		if g.GID == index {
			gid = g.Index
		}
	}
	ah, err := w.tb.Dev[1].CreateAH(ctx, roce.AHAttr{Remote: sv.QP.Local().GID, GIDIndex: &gid})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ah.Close()) }()
	for range 1 + r.IntN(10) {
		n := 1 + r.IntN(slots)
		for i := range n {
			size := head + r.IntN(1024)
			stamp(r, cl.MR.Bytes()[i*slotLen:i*slotLen+size])
			err := cl.QP.PostSend(roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled, AH: ah,
				SGEs: []roce.SGE{cl.MR.SGE(i*slotLen, size)}, RemoteQPN: sv.QP.QPN(),
				RemoteQKey: qkey})
			if err != nil {
				return err
			}
		}
		if err := w.sends(cl.CQ, n); err != nil {
			return err
		}
		err := w.arrivals(sv.RecvCQ, func(wc *roce.WC) error {
			at := int(wc.ID) * slotLen
			if wc.ByteLen < roce.GRHLen || wc.SrcQP != cl.QP.QPN() {
				return fmt.Errorf("datagram of %d bytes from QP %v", wc.ByteLen, wc.SrcQP)
			}
			w.n[datagramsGot].Add(1)
			return errors.Join(stamped(sv.MR.Bytes()[at+roce.GRHLen:at+int(wc.ByteLen)]),
				post(sv, int(wc.ID)))
		})
		if err != nil {
			return err
		}
		w.pace.wait()
	}
	return nil
}

// unreliable sends UC messages: SENDs, and WRITEs with immediate to one part of the memory each. No
// part is used twice, because UC has no protection against late duplicates of a WRITE.
func (w *world) unreliable(r *rand.Rand) (err error) {
	cl, sv, err := w.lossy(r, roce.UC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cl.Close(), sv.Close()) }()
	target, err := sv.AddMR(maxRounds*slots*slotLen, endpoint.AllRemote)
	if err != nil {
		return err
	}
	w.n[regions].Add(1)
	for i := range slots {
		if err := post(sv, i); err != nil {
			return err
		}
	}
	ctx, cancel := w.wait()
	defer cancel()
	o := options(r)
	if err := errors.Join(sv.QP.Connect(ctx, cl.QP.Local(), o),
		cl.QP.Connect(ctx, sv.QP.Local(), o)); err != nil {
		return err
	}
	for round := range uint32(1 + r.IntN(maxRounds)) {
		n := 1 + r.IntN(slots)
		for i := range n {
			size := head + r.IntN(slotLen-head)
			stamp(r, cl.MR.Bytes()[i*slotLen:i*slotLen+size])
			wr := roce.SendWR{Op: roce.OpSend, Flags: roce.Signaled,
				SGEs: []roce.SGE{cl.MR.SGE(i*slotLen, size)}}
			if r.IntN(2) == 0 {
				wr.Op, wr.Imm, wr.RKey = roce.OpWriteImm, round*slots+uint32(i), target.RKey()
				wr.RemoteAddr = target.Addr() + uint64(wr.Imm)*slotLen
			}
			if err := cl.QP.PostSend(wr); err != nil {
				return err
			}
		}
		if err := w.sends(cl.CQ, n); err != nil {
			return err
		}
		err := w.arrivals(sv.RecvCQ, func(wc *roce.WC) error {
			at := sv.MR.Bytes()[int(wc.ID)*slotLen:][:wc.ByteLen]
			if wc.Opcode == roce.WCRecvWriteImm {
				if wc.Imm/slots > round {
					return fmt.Errorf("immediate %d in round %d", wc.Imm, round)
				}
				at = target.Bytes()[wc.Imm*slotLen:][:wc.ByteLen]
			}
			w.n[unreliableGot].Add(1)
			return errors.Join(stamped(at), post(sv, int(wc.ID)))
		})
		if err != nil {
			return err
		}
		w.pace.wait()
	}
	return nil
}
