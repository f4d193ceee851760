package perftest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// MaxQPs is how many queue pairs a client may bring.
const MaxQPs = 256

// Host is what a Server's exchange is about. Its methods are called by Serve's
// goroutine. An error ends the exchange.
type Host interface {
	// QueuePair is called for each queue pair that the client names for the
	// first time. It connects one of ours to it and returns its key.
	QueuePair(ctx context.Context, peer Key) (Key, error)
	// Meet is called for each blank key: one before the client connects its
	// queue pairs by rdma_cm, and one after that.
	Meet() error
	// Sync is called for each further key, before it is answered.
	Sync() error
	// Report is what this end answers to the client's report.
	Report() Report
	// Reported takes the client's.
	Reported(Report)
}

// Server is the server's end, of any test and any number of queue pairs.
type Server struct {
	Peer Hello

	l     *Link
	cycle int
	peers []roce.QPN
	own   []Key
}

// Answer takes the client's version and tells ours. If the client is a gorxe, the exchange
// ends here and package oob's begins.
func Answer(ctx context.Context, l *Link) (*Server, error) {
	_, b, err := l.receive(ctx, kindHello, l.timeout)
	if err != nil {
		return nil, err
	}
	h, err := parseHello(b)
	if err != nil {
		return nil, err
	}
	return &Server{Peer: h, l: l}, l.send(ctx, hello(h.Gorxe))
}

// Agree settles the path MTU: the smaller of ours and the client's.
func (s *Server) Agree(ctx context.Context, mtu roce.MTU) (roce.MTU, error) {
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

// Cycle is how many bytes of each buffer the client cycles through with
// messages of up to half that; valid after Agree.
func (s *Server) Cycle() int { return max(s.cycle, cycleBuffer) }

// Serve answers the client until it closes, which is how every exchange ends,
// and returns nil then.
func (s *Server) Serve(ctx context.Context, h Host) error {
	limit := s.l.timeout // for the first key; how long a run takes is the client's affair
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
	case kindWord:
		return s.report(ctx, h, b)
	}
	return nil // done: it closes now
}

func (s *Server) key(ctx context.Context, h Host, b []byte) error {
	k, err := s.l.decode(b)
	if err != nil {
		return err
	}
	if k.QPN == 0 {
		if err := h.Meet(); err != nil {
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

// report goes through the words of a report, of which the first is there.
func (s *Server) report(ctx context.Context, h Host, first []byte) error {
	own, peer := h.Report(), Report{}
	var got [reportWords]uint64
	for i, v := range own.words() {
		b := first
		if i > 0 {
			var err error
			if _, b, err = s.l.receive(ctx, kindWord, s.l.timeout); err != nil {
				return err
			}
		}
		got[i] = binary.BigEndian.Uint64(b)
		if err := s.l.send(ctx, word(v)); err != nil {
			return err
		}
	}
	peer.read(got)
	h.Reported(peer)
	return nil
}
