package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/endpoint"
	"github.com/gorxe/gorxe/roce"
)

const (
	// qkey is the Q_Key of ibv_ud_pingpong.
	qkey = 0x11111111

	// silence is the longest time to wait for a message. Unreliable messages may be lost, and the
	// peer may vanish.
	silence = 20 * time.Second
	// linger is the time during which a finished side still answers: the ACK of the peer's last
	// message may have been lost. The example programs retransmit seven times after 67 ms.
	linger = 500 * time.Millisecond

	// Queue pair attributes of the example programs.
	timeoutExp = 14
	rnrTimer   = 12
)

// IDs of work requests. They are bits, so that a set of them tells which completions are
// outstanding.
const (
	idRecv = 1 << iota
	idSend
)

// player is one side of a session.
type player struct {
	Config
	dev *roce.Device

	e       *endpoint.Endpoint
	gid     *int
	ah      *roce.AH // UD only
	peer    []Address
	pending []int // per QP: IDs of the completions that must come before the next message
	posted  int   // receives
	seq     int   // number of the message in flight, with Check
}

// open creates the queue pairs and posts receives.
func (p *player) open(local netip.Addr) (err error) {
	if p.gid, err = p.GID(p.dev, local); err != nil {
		return err
	}
	c := endpoint.Config{
		QP: roce.QPConfig{Type: p.transport(), SendDepth: 2, RecvDepth: p.RecvDepth,
			GIDIndex: p.gid},
		QPs: p.QPs, SendCQ: p.RecvDepth + 2*p.QPs,
		// The receive buffer, which is also the send buffer, and a send buffer for Check.
		Memory: 2 * p.slot(), Access: roce.LocalWrite,
	}
	if p.Kind == SRQ {
		c.SRQ = &roce.SRQConfig{Depth: p.RecvDepth}
	}
	if p.e, err = endpoint.New(p.dev, c); err != nil {
		return err
	}
	p.pending = make([]int, len(p.e.QPs))
	return p.postRecvs()
}

// postRecvs posts receives up to the depth. All use the same buffer: only one message is in flight
// on a queue pair, and only the client of a single queue pair looks at the payload.
func (p *player) postRecvs() error {
	for ; p.posted < p.RecvDepth; p.posted++ {
		wr := roce.RecvWR{ID: idRecv, SGEs: []roce.SGE{p.e.MR.SGE(0, p.slot())}}
		var err error
		if p.e.SRQ != nil {
			err = p.e.SRQ.PostRecv(wr)
		} else {
			err = p.e.QP.PostRecv(wr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// addresses returns the addresses of the local queue pairs.
func (p *player) addresses() []Address {
	var out []Address
	for _, q := range p.e.QPs {
		l := q.Local()
		out = append(out, Address{l.QPN, l.PSN, l.GID})
	}
	return out
}

// connect connects the queue pairs to those of the peer, in order.
func (p *player) connect(ctx context.Context, peer []Address) error {
	for i, q := range p.e.QPs {
		if err := peer[i].check(); err != nil {
			return err
		}
		if p.Kind == UD {
			if err := q.Activate(qkey); err != nil {
				return err
			}
			continue
		}
		err := q.Connect(ctx, roce.Endpoint{
			QPN: peer[i].QPN, PSN: peer[i].PSN, GID: peer[i].GID, MTU: p.MTU,
		}, roce.ConnectOptions{Timeout: timeoutExp, MinRNRTimer: rnrTimer, MaxRdAtomic: 1,
			MaxDestRdAtomic: 1})
		if err != nil {
			return err
		}
	}
	p.peer = peer
	if p.Kind == UD {
		var err error
		p.ah, err = p.dev.CreateAH(ctx, roce.AHAttr{Remote: peer[0].GID, GIDIndex: p.gid})
		return err
	}
	return nil
}

// play sends and receives all messages and returns how long that took. The client sends first.
func (p *player) play(ctx context.Context, client bool) (time.Duration, error) {
	check := p.Check && client && p.Kind != SRQ
	for i := range p.e.QPs {
		p.pending[i] = idRecv
		if !client {
			continue
		}
		if err := p.send(i, check); err != nil {
			return 0, err
		}
	}
	start := time.Now()
	var sent, received int
	wcs := make([]roce.WC, len(p.e.QPs)+1)
	for sent < p.Iterations || received < p.Iterations {
		n, err := p.wait(ctx, wcs)
		if err != nil {
			return 0, fmt.Errorf("after %d messages sent and %d received: %w", sent, received, err)
		}
		for _, w := range wcs[:n] {
			i := p.index(w.QPN)
			if w.Status != roce.Success {
				return 0, fmt.Errorf(
					"message %d: %v: check that the peer still runs, and that -s, -m and -n are the same on both sides", sent, w.Status)
			}
			if w.ID == idSend {
				sent++
			} else {
				received++
				p.posted--
				if err := p.received(&w, check); err != nil {
					return 0, err
				}
			}
			p.pending[i] &^= int(w.ID)
			if sent < p.Iterations && p.pending[i] == 0 {
				if err := p.send(i, check); err != nil {
					return 0, err
				}
			}
		}
	}
	return time.Since(start), nil
}

// send posts a message on queue pair i: a new pattern if check is set, the receive buffer
// otherwise.
func (p *player) send(i int, check bool) error {
	off := p.grh()
	if check {
		off += p.slot()
		p.seq++
		fill(p.e.MR.Bytes()[off:off+p.Bytes], p.seq)
	}
	wr := roce.SendWR{ID: idSend, Op: roce.OpSend, Flags: roce.Signaled,
		SGEs: []roce.SGE{p.e.MR.SGE(off, p.Bytes)}}
	if p.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, p.peer[0].QPN, qkey
	}
	if err := p.e.QPs[i].PostSend(wr); err != nil {
		return err
	}
	p.pending[i] = idRecv | idSend
	return nil
}

// received checks a message and posts new receives when few are left.
func (p *player) received(w *roce.WC, check bool) error {
	if int(w.ByteLen) != p.slot() {
		return fmt.Errorf("received a message of %d bytes instead of %d: use the same -s on both sides", int(w.ByteLen)-p.grh(), p.Bytes)
	}
	if check {
		if err := compare(p.e.MR.Bytes()[p.grh():p.slot()], p.seq); err != nil {
			return err
		}
	}
	if p.posted > len(p.e.QPs) {
		return nil
	}
	return p.postRecvs()
}

// wait is CQ.Wait with a time limit.
func (p *player) wait(ctx context.Context, wcs []roce.WC) (int, error) {
	if n := p.e.CQ.Poll(wcs); n > 0 {
		return n, nil
	}
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	n, err := p.e.CQ.Wait(limited, wcs)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		why := "the peer is gone, or its -n differs"
		if p.transport() != roce.RC {
			why = fmt.Sprintf("a message was lost, which %s does not retransmit, or ",
				p.transport()) + why
		}
		err = fmt.Errorf("no message for %v: %s", silence, why)
	}
	return n, err
}

func (p *player) index(n roce.QPN) int {
	for i, q := range p.e.QPs {
		if q.QPN() == n {
			return i
		}
	}
	return 0
}

// close destroys all objects. After a complete session it first answers the peer's retransmissions
// for a moment.
func (p *player) close(complete bool) error {
	if complete && p.transport() == roce.RC {
		for end := time.Now().Add(linger); time.Now().Before(end); {
			if p.dev.Progress() == 0 {
				time.Sleep(time.Millisecond)
			}
		}
	}
	var err error
	if p.ah != nil {
		err = p.ah.Close()
	}
	if p.e != nil {
		err = errors.Join(err, p.e.Close())
	}
	return err
}

// fill writes the pattern of message seq.
func fill(b []byte, seq int) {
	for i := range b {
		b[i] = byte(seq*31 + i*7)
	}
}

// compare checks that b holds the pattern of message seq.
func compare(b []byte, seq int) error {
	for i, v := range b {
		if want := byte(seq*31 + i*7); v != want {
			return fmt.Errorf("message %d came back changed: byte %d is 0x%02x instead of 0x%02x",
				seq, i, v, want)
		}
	}
	return nil
}
