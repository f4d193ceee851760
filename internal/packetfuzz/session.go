package packetfuzz

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/frame"
	"github.com/gorxe/gorxe/fuzz/packets"
	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/internal/perftest"
	"github.com/gorxe/gorxe/internal/rping"
	"github.com/gorxe/gorxe/roce"
)

const (
	// dialTime limits the time to connect. A lost message is repeated after a second.
	dialTime = 5 * time.Second
	// readTime is how long the host may take until it READs.
	readTime = 50 * time.Millisecond
	// sessionCases is how many cases use a connection before the next one is opened.
	sessionCases = 64
	// perftestMemory is the least memory that a perftest server has by default.
	perftestMemory = 64 << 10
	// memory is the number of bytes that the host may access.
	memory = 4096
)

// session is a connection to the host. Its local queue pair is idle; the cases use its numbers.
type session struct {
	t    *tap
	e    *endpoint.Endpoint
	hang func() error    // ends the connection
	done <-chan struct{} // closed when the host has ended it
	read bool            // the host READs when it gets an rping message
	to   packets.Target
	psn  bth.PSN // expected by the host
	peer bth.PSN // of the host's first request
	left int     // cases
	enc  frame.Encoder
}

// openSession connects to the server at addr: rping, or perftest if viaPerftest is set.
func openSession(
	ctx context.Context, t *tap, dev *roce.Device, gid *int, addr netip.AddrPort,
	to packets.Target, viaPerftest bool,
) (*session, error) {
	e, err := endpoint.New(dev, endpoint.Config{
		QP:     roce.QPConfig{SendDepth: 4, RecvDepth: 4, GIDIndex: gid},
		Memory: memory, Access: endpoint.AllRemote,
	})
	if err != nil {
		return nil, err
	}
	s := &session{t: t, e: e, to: to, left: sessionCases}
	if viaPerftest {
		err = s.openPerftest(ctx, addr)
	} else {
		err = s.openRping(ctx, addr)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	t.follow(e.QP.QPN())
	return s, nil
}

// openRping connects by the connection manager.
func (s *session) openRping(ctx context.Context, addr netip.AddrPort) error {
	conn, err := s.e.Dev.Dial(ctx, addr, s.e.QP, roce.DialOptions{
		ConnectOptions: roce.ConnectOptions{MaxRdAtomic: 1, MaxDestRdAtomic: 1, Retries: 1}})
	if err != nil {
		return err
	}
	s.hang, s.done, s.read = conn.Close, conn.Done(), true
	a, err := s.e.QP.Query()
	if err != nil {
		return err
	}
	s.psn, s.peer = a.SQPSN, a.RQPSN
	s.to.QPN, s.to.MTU = a.DestQPN, a.PathMTU
	return nil
}

// openPerftest exchanges keys with a perftest server over TCP. The host connects its queue pair and
// waits. The local one stays unconnected, so that only the fuzzer answers.
func (s *session) openPerftest(ctx context.Context, addr netip.AddrPort) error {
	nc, err := new(net.Dialer).DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	done := make(chan struct{})
	s.hang, s.done = nc.Close, done
	c, err := perftest.Greet(ctx, perftest.NewLink(nc), false)
	if err != nil {
		return err
	}
	if s.to.MTU, err = c.AgreeMTU(ctx, s.e.Dev.Info().ActiveMTU); err != nil {
		return err
	}
	own := s.e.QP.Local()
	keys, err := c.ExchangeKeys(ctx, perftest.Test{Verb: perftest.Write}, []perftest.Key{{
		OutReads: 1, QPN: own.QPN, PSN: own.PSN, GID: own.GID,
		RKey: s.e.MR.RKey(), Addr: s.e.MR.Addr()}})
	if err != nil {
		return err
	}
	k := keys[0]
	s.psn, s.peer, s.to.QPN = own.PSN, k.PSN, k.QPN
	s.to.Addr, s.to.RKey, s.to.Len = k.Addr, k.RKey, perftestMemory
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, nc) // until either side closes it
	}()
	return nil
}

// over reports whether the connection has ended, or has served enough cases.
func (s *session) over() bool { return s.left == 0 || s.ended() }

// ended reports whether the host has ended the connection.
func (s *session) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return s.t.dead.Load()
	}
}

// announce makes the host READ, as an rping client does. From then on the device does not see the
// host's requests, so that only the fuzzer answers them.
func (s *session) announce() {
	s.t.swallow.Store(true)
	const size = 64
	b := make([]byte, 0, 16)
	b = binary.BigEndian.AppendUint64(b, s.e.MR.Addr())
	b = binary.BigEndian.AppendUint32(b, uint32(s.e.MR.RKey()))
	b = binary.BigEndian.AppendUint32(b, size)
	before := s.t.answers[answerRequest].Load()
	// The local queue pair cannot send it: it does not know the PSNs of the cases.
	s.t.send(s.message(b))
	s.psn = s.psn.Next()
	if !s.t.flush(flushTime) {
		return
	}
	for end := time.Now().Add(readTime); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if s.t.answers[answerRequest].Load() > before || s.ended() {
			return
		}
	}
}

func (s *session) pkey() bth.PKey {
	if s.to.PKey == 0 {
		return bth.DefaultPKey
	}
	return s.to.PKey
}

// message returns the frame of a valid SEND.
func (s *session) message(payload []byte) []byte {
	b := make([]byte, bth.MaxNetHeader+bth.HeaderLen+len(payload)+bth.ICRCLen)
	n := frame.PutHeaders(b, &s.to.Address)
	bth.PutBTH(b[n:], &bth.BTHFields{Opcode: bth.RCSendOnly, PKey: s.pkey(), AckReq: true,
		DestQP: s.to.QPN, PSN: s.psn})
	copy(b[n+bth.HeaderLen:], payload)
	b = b[:n+bth.HeaderLen+len(payload)+bth.ICRCLen]
	s.enc.Finish(b, n)
	return b
}

// target returns what the packets of a case aim at.
func (s *session) target(p *plan) packets.Target {
	to := s.to
	if to.PSN = s.psn; p.readFirst {
		to.PSN = s.peer
	}
	return to
}

// sent notes the PSN that the host should expect after a case.
func (s *session) sent(p *plan, psn bth.PSN) {
	s.left--
	if !p.readFirst {
		s.psn = psn
	}
	if known := s.t.psn.Swap(-1); known >= 0 {
		s.psn = bth.PSN(known)
	}
}

func (s *session) close() error {
	s.t.follow(0)
	var err error
	if s.hang != nil {
		err = s.hang()
	}
	return errors.Join(err, s.e.Close())
}

// rpingAddr returns the address of the rping server.
func rpingAddr(target netip.Addr, port int) netip.AddrPort {
	if port == 0 {
		port = rping.DefaultPort
	}
	return netip.AddrPortFrom(target, uint16(port))
}
