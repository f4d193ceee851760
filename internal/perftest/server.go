package perftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// MaxQPs is the largest number of queue pairs of one client.
const MaxQPs = 256

// Host provides what a Server tells its client. Serve calls the methods in its own goroutine and
// returns their errors.
type Host interface {
	// QueuePair is called for the first key of each of the client's queue pairs. It connects a
	// local queue pair to it and returns the key of that queue pair.
	QueuePair(ctx context.Context, peer Key) (Key, error)
	// BlankKey is called for each blank key: once before and once after the client connects its
	// queue pairs by rdma_cm.
	BlankKey() error
	// Sync is called for each further key, which is a barrier, before the server answers it.
	Sync() error
	// Report returns the answer to the client's report.
	Report() Report
	// Reported is called with the client's report.
	Reported(Report)
}

// Server is the server side of the protocol, for any test and any number of queue pairs.
type Server struct {
	Peer Hello

	l     *Link
	cycle int
	peers []roce.QPN
	own   []Key
}

// AnswerHello receives the client's hello and answers it. If the client is a gorxe, both sides
// continue with the protocol of package exchange.
func AnswerHello(ctx context.Context, l *Link) (*Server, error) {
	h, err := l.receiveHello(ctx)
	if err != nil {
		return nil, err
	}
	return &Server{Peer: h, l: l}, l.send(ctx, hello(h.Gorxe))
}

// AgreeMTU exchanges path MTUs and returns the smaller one. mtu is the local one.
func (s *Server) AgreeMTU(ctx context.Context, mtu roce.MTU) (roce.MTU, error) {
	for _, v := range [...]uint32{cycleBuffer, cacheLine} {
		_, b, err := s.l.receive(ctx, kindInt, s.l.timeout)
		if err == nil {
			err = checkInt(b)
		}
		if err != nil {
			return 0, err
		}
		if v == cycleBuffer {
			s.cycle = int(binary.BigEndian.Uint32(b))
		}
		if err := s.l.send(ctx, binary.BigEndian.AppendUint32(nil, v)); err != nil {
			return 0, err
		}
	}
	_, b, err := s.l.receive(ctx, kindMTU, s.l.timeout)
	if err != nil {
		return 0, err
	}
	agreed, err := agreeMTU(mtu, b)
	if err != nil {
		return 0, err
	}
	return agreed, s.l.send(ctx, mtuText(mtu))
}

// Cycle returns the number of bytes of a buffer that the client cycles through with messages of up
// to half that size. It is valid after AgreeMTU.
func (s *Server) Cycle() int { return max(s.cycle, cycleBuffer) }

// Serve answers the client until it closes the connection, which is the normal end of a session,
// and returns nil.
func (s *Server) Serve(ctx context.Context, h Host) error {
	limit := s.l.timeout // for the first key; a run may take any time
	for {
		k, b, err := s.l.receive(ctx, kindAny, limit)
		if err == nil {
			err = s.answer(ctx, h, k, b)
		}
		switch {
		case errors.Is(err, ErrGone) && len(s.own) > 0:
			return nil
		case err != nil:
			return err
		}
		limit = 0
	}
}

func (s *Server) answer(ctx context.Context, h Host, k kind, b []byte) error {
	switch k {
	case kindKey:
		return s.key(ctx, h, b)
	case kindValue:
		return s.report(ctx, h, b)
	}
	return nil // done: the client closes the connection
}

func (s *Server) key(ctx context.Context, h Host, b []byte) error {
	k, err := s.l.decode(b)
	if err != nil {
		return err
	}
	if k.QPN == 0 {
		if err := h.BlankKey(); err != nil {
			return err
		}
		return s.l.send(ctx, s.l.encode(&Key{}))
	}
	for i, qpn := range s.peers {
		if qpn == k.QPN {
			if err := h.Sync(); err != nil {
				return err
			}
			return s.l.send(ctx, s.l.encode(&s.own[i]))
		}
	}
	if len(s.peers) == MaxQPs {
		return fmt.Errorf("%w: more than %d queue pairs", ErrProtocol, MaxQPs)
	}
	own, err := h.QueuePair(ctx, k)
	if err != nil {
		return err
	}
	s.peers, s.own = append(s.peers, k.QPN), append(s.own, own)
	return s.l.send(ctx, s.l.encode(&own))
}

// report exchanges reports. first is the first value of the client's report.
func (s *Server) report(ctx context.Context, h Host, first []byte) error {
	own, peer := h.Report(), Report{}
	var got [reportValues]uint64
	for i, v := range own.values() {
		b := first
		if i > 0 {
			var err error
			if _, b, err = s.l.receive(ctx, kindValue, s.l.timeout); err != nil {
				return err
			}
		}
		got[i] = binary.BigEndian.Uint64(b)
		if err := s.l.send(ctx, encodeValue(v)); err != nil {
			return err
		}
	}
	peer.read(got)
	h.Reported(peer)
	return nil
}
