package perf

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"

	"github.com/gorxe/gorxe/roce"
)

// proofBytes is the number of random bytes that a peer must return.
const proofBytes = 8

// proofID is the ID of the work requests of prove.
const proofID = uint64(1) << 62

// errProof means that the peer returned other bytes than it was sent.
var errProof = errors.New("the peer did not return what it was sent: use the same gorxe on both sides")

// prove checks that the peer receives RDMA packets from the local side: it WRITEs random bytes to
// the peer's buffers and READs them back. A server that sends first calls it before it streams.
// Otherwise a client could make it send to a host that wants nothing, by forging the
// acknowledgments of that host: it knows the QPNs and PSNs from the exchange over TCP.
func (s *Side) prove(ctx context.Context) error {
	for i := range s.Session.QPs {
		size := min(proofBytes, s.Params.Bytes)
		for sent := 0; sent < proofBytes; sent += size {
			if err := s.returnBytes(ctx, i, size); err != nil {
				return err
			}
		}
	}
	return nil
}

// returnBytes sends n random bytes to the peer's buffer of queue pair i and reads them back.
func (s *Side) returnBytes(ctx context.Context, i, n int) error {
	// The peer may already write to the other buffer of the queue pair. A buffer has at least 64
	// bytes.
	out := s.Session.Out(i)
	b := s.Session.MR.Bytes()[out:]
	sent, back := b[:n], b[proofBytes:][:n]
	_, _ = rand.Read(sent) // never fails
	clear(back)
	if err := s.proofStep(ctx, i, roce.OpWrite, out, n); err != nil {
		return err
	}
	if err := s.proofStep(ctx, i, roce.OpRead, out+proofBytes, n); err != nil {
		return err
	}
	if !bytes.Equal(sent, back) {
		return errProof
	}
	return nil
}

// proofStep performs a WRITE or READ of n bytes at an offset of MR, and handles other completions
// meanwhile.
func (s *Side) proofStep(ctx context.Context, i int, op roce.Op, offset, n int) error {
	peer := s.Session.Peer[i].Buffer
	err := s.Session.QPs[i].PostSend(roce.SendWR{
		ID: proofID, Op: op, Flags: roce.Signaled,
		SGEs:       []roce.SGE{s.Session.MR.SGE(offset, n)},
		RemoteAddr: peer.Addr, RKey: peer.RKey,
	})
	if err != nil {
		return err
	}
	done := false
	for !done {
		k, err := s.wait(ctx)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err = s.each(k, func(wc *roce.WC) error {
			if wc.ID == proofID {
				done = true
				return nil
			}
			return s.repost(wc)
		})
		if err != nil {
			return err
		}
	}
	return nil
}
