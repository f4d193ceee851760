package perf

import (
	"context"
	"errors"

	"github.com/gorxe/gorxe/internal/exchange"
)

// peerSession is a session with a gorxe peer, on either side.
type peerSession struct {
	*Side
	conn   *exchange.Conn
	active bool // the local side measures

	// proven is set when the peer has shown that it receives RDMA packets. A client need not check
	// this, because its user has named the server.
	proven bool
}

// peerResult receives the peer's last message of a run.
type peerResult struct {
	done    chan struct{} // closed when the message has arrived
	outcome Outcome       // valid after done
}

// watch waits for the peer's last message of a run in a goroutine. The returned context ends if the
// peer fails or closes the connection; its cause is the reason.
func (p *peerSession) watch(ctx context.Context) (
	context.Context, context.CancelCauseFunc, *peerResult) {
	ctx, cancel := context.WithCancelCause(ctx)
	peer := &peerResult{done: make(chan struct{})}
	p.PeerDone.Store(false)
	go func() {
		m, err := p.conn.Await(ctx, exchange.KindDone)
		if err == nil {
			err = m.Decode(&peer.outcome)
		}
		if err != nil {
			cancel(err)
			return
		}
		p.PeerDone.Store(true)
		close(peer.done)
	}()
	return ctx, cancel, peer
}

// run performs one run and returns what both sides measured. It calls start when the local side
// accepts the peer's messages.
func (p *peerSession) run(parent context.Context, r Run, start func() error) (
	own, peer Outcome, err error) {
	ctx, cancel, result := p.watch(parent)
	defer cancel(nil)
	if err = start(); err != nil {
		return own, peer, err
	}
	if p.active && !p.proven {
		if err = p.prove(ctx); err != nil {
			return own, peer, Cause(ctx, err)
		}
		p.proven = true
	}
	if p.active {
		if own, err = p.Measure(ctx, r); err == nil {
			err = p.sendDone(ctx, own)
		}
		if err != nil {
			return own, peer, Cause(ctx, err)
		}
	}
	if err = p.attend(ctx, r, result); err != nil {
		return own, peer, Cause(ctx, err)
	}
	if !p.active {
		err = p.sendDone(ctx, own)
	}
	return own, result.outcome, err
}

// Cause returns the cause of ctx if something other than a plain cancellation ended it, and err
// otherwise. The cause is usually the reason why a work request failed with err.
func Cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) {
		return c
	}
	return err
}

func (p *peerSession) sendDone(ctx context.Context, own Outcome) error {
	return p.conn.Send(ctx,
		&exchange.Message{Kind: exchange.KindDone, Params: exchange.Encode(own)})
}

// attend serves the peer's part of the run until the peer is done.
func (p *peerSession) attend(ctx context.Context, r Run, peer *peerResult) error {
	if !p.active && p.Params.Operation.Reply != ReplyNone {
		return newLatency(p.Side, r).reply(ctx)
	}
	if p.active && !p.Params.Bidirectional {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, exchange.Timeout, exchange.ErrTimeout)
		defer cancel()
	}
	return p.AwaitPeer(ctx, peer.done)
}
