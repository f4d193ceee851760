package pingpong

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/roce"
)

const (
	qkey = 0x11111111 // of the examples' datagrams

	// silence is how long no message may come: unreliable ones get lost, and a peer may vanish.
	silence = 20 * time.Second
	// linger is how long this end still answers when it is done: the peer may not have heard yet that its last message arrived.
	linger = 250 * time.Millisecond

	// The examples' attributes.
	timeoutExp = 14
	rnrTimer   = 12
)

// The IDs of work requests; a message's completions are told apart by them.
const (
	idRecv = 1 + iota
	idSend
)

// rules are what both ends have to agree on.
type rules struct {
	kind  string // rc, uc, ud or srq
	bytes int
	mtu   roce.MTU
	qps   int
	depth int // receives
	iters int
	check bool
}

// player is one end.
type player struct {
	rules
	dev   *roce.Device
	flags *device.Flags

	gid     *int
	pd      *roce.PD
	cq      *roce.CQ
	srq     *roce.SRQ
	mr      *roce.MR
	qps     []*roce.QP
	peer    []destination
	ah      *roce.AH
	pending []int // per QP: completions that have to come before the next message
	posted  int   // receives
	seq     int   // of the message under way, for --check
}

func (r *rules) transport() roce.QPType {
	switch r.kind {
	case "uc":
		return roce.UC
	case "ud":
		return roce.UD
	}
	return roce.RC
}

func (r *rules) grh() int {
	if r.kind == "ud" {
		return roce.GRHLen
	}
	return 0
}

// prepare makes the queue pairs, with a GID that fits the address.
func (p *player) prepare(local netip.Addr) (err error) {
	if p.gid, err = p.flags.GIDFor(p.dev, local); err != nil {
		return err
	}
	if p.pd, err = p.dev.AllocPD(); err != nil {
		return err
	}
	// What is received, and what is sent when it is not just sent back.
	if p.mr, err = p.pd.AllocMR(2*p.slot(), roce.LocalWrite); err != nil {
		return err
	}
	if p.cq, err = p.dev.CreateCQ(p.depth + 2*p.rules.qps); err != nil {
		return err
	}
	cfg := roce.QPConfig{Type: p.transport(), SendCQ: p.cq, SendDepth: 2, RecvDepth: p.depth, GIDIndex: p.gid}
	if p.kind == "srq" {
		if p.srq, err = p.dev.CreateSRQ(p.pd, roce.SRQConfig{Depth: p.depth}); err != nil {
			return err
		}
		cfg.SRQ = p.srq
	}
	for range p.rules.qps {
		q, err := p.dev.CreateQP(p.pd, cfg)
		if err != nil {
			return err
		}
		p.qps = append(p.qps, q)
	}
	p.pending = make([]int, len(p.qps))
	return p.receive()
}

// slot is the memory of one message.
func (p *player) slot() int { return p.grh() + p.bytes }

// receive posts receives up to the depth, all of them into the same memory: only one message is under way on a queue pair.
func (p *player) receive() error {
	for ; p.posted < p.depth; p.posted++ {
		wr := roce.RecvWR{ID: idRecv, SGEs: []roce.SGE{p.mr.SGE(0, p.slot())}}
		var err error
		if p.srq != nil {
			err = p.srq.PostRecv(wr)
		} else {
			err = p.qps[0].PostRecv(wr)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// destinations is what the peer has to know.
func (p *player) destinations() []destination {
	var out []destination
	for _, q := range p.qps {
		l := q.Local()
		out = append(out, destination{l.QPN, l.PSN, l.GID})
	}
	return out
}

// connect joins the queue pairs to the peer's.
func (p *player) connect(ctx context.Context, peer []destination) error {
	for i, q := range p.qps {
		if err := peer[i].check(); err != nil {
			return err
		}
		if p.kind == "ud" {
			if err := q.Activate(qkey); err != nil {
				return err
			}
			continue
		}
		err := q.Connect(ctx, roce.Endpoint{
			QPN: peer[i].qpn, PSN: peer[i].psn, GID: peer[i].gid, MTU: p.mtu, PKey: roce.DefaultPKey,
		}, roce.ConnectOptions{Timeout: timeoutExp, MinRNRTimer: rnrTimer, MaxRdAtomic: 1, MaxDestRdAtomic: 1})
		if err != nil {
			return err
		}
	}
	p.peer = peer
	if p.kind == "ud" {
		var err error
		p.ah, err = p.dev.CreateAH(ctx, roce.AHAttr{Remote: peer[0].gid, GIDIndex: p.gid})
		return err
	}
	return nil
}

// send posts one message: what was received last, or with a check, as the client, a new one.
func (p *player) send(i int, fresh bool) error {
	off := p.grh()
	if fresh {
		off += p.slot()
		p.seq++
		fill(p.mr.Bytes()[off:off+p.bytes], p.seq)
	}
	wr := roce.SendWR{ID: idSend, Op: roce.OpSend, Flags: roce.Signaled, SGEs: []roce.SGE{p.mr.SGE(off, p.bytes)}}
	if p.ah != nil {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, p.peer[0].qpn, qkey
	}
	if err := p.qps[i].PostSend(wr); err != nil {
		return err
	}
	p.pending[i] = idRecv | idSend
	return nil
}

func fill(b []byte, seq int) {
	for i := range b {
		b[i] = byte(seq*31 + i*7)
	}
}

func compare(b []byte, seq int) error {
	for i, v := range b {
		if want := byte(seq*31 + i*7); v != want {
			return fmt.Errorf("message %d came back changed: byte %d is 0x%02x and was 0x%02x", seq, i, v, want)
		}
	}
	return nil
}

// play sends and receives until both counts are full, and returns how long it took. serve says who begins: the client.
func (p *player) play(ctx context.Context, client bool) (time.Duration, error) {
	check := p.check && client && p.srq == nil
	for i := range p.qps {
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
	wcs := make([]roce.WC, p.rules.qps+1)
	for sent < p.iters || received < p.iters {
		n, err := p.await(ctx, wcs)
		if err != nil {
			return 0, fmt.Errorf("after %d messages sent and %d received: %w", sent, received, err)
		}
		for _, w := range wcs[:n] {
			i := p.index(w.QPN)
			if w.Status != roce.Success {
				return 0, fmt.Errorf("message %d: %v: is the peer still there, and are -s, -m and -n the same on both ends?", sent, w.Status)
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
			if sent < p.iters && p.pending[i] == 0 {
				if err := p.send(i, check); err != nil {
					return 0, err
				}
			}
		}
	}
	return time.Since(start), nil
}

// received looks at a message and posts new receives when few are left.
func (p *player) received(w *roce.WC, check bool) error {
	if int(w.ByteLen) != p.slot() {
		return fmt.Errorf("a message of %d bytes came, %d are agreed on: give -s the same value on both ends", int(w.ByteLen)-p.grh(), p.bytes)
	}
	if check {
		if err := compare(p.mr.Bytes()[p.grh():p.slot()], p.seq); err != nil {
			return err
		}
	}
	if p.posted > p.rules.qps {
		return nil
	}
	return p.receive()
}

// await is CQ.Wait that does not wait for ever.
func (p *player) await(ctx context.Context, wcs []roce.WC) (int, error) {
	if n := p.cq.Poll(wcs); n > 0 {
		return n, nil
	}
	limited, cancel := context.WithTimeout(ctx, silence)
	defer cancel()
	n, err := p.cq.Wait(limited, wcs)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		why := "the peer is gone, or has another -n than this end"
		if p.transport() != roce.RC {
			why = fmt.Sprintf("a message was lost, which %s does not repeat, or ", p.transport()) + why
		}
		err = fmt.Errorf("nothing came for %v: %s", silence, why)
	}
	return n, err
}

func (p *player) index(n roce.QPN) int {
	for i, q := range p.qps {
		if q.QPN() == n {
			return i
		}
	}
	return 0
}

// close takes everything apart. With grace it answers the peer's repetitions for a moment.
func (p *player) close(grace bool) error {
	if grace && p.transport() == roce.RC {
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
	for _, q := range p.qps {
		err = errors.Join(err, q.Close())
	}
	if p.srq != nil {
		err = errors.Join(err, p.srq.Close())
	}
	if p.cq != nil {
		err = errors.Join(err, p.cq.Close())
	}
	if p.mr != nil {
		err = errors.Join(err, p.mr.Close())
	}
	if p.pd != nil {
		err = errors.Join(err, p.pd.Close())
	}
	return err
}
