package perf

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/exchange"
	"github.com/gorxe/gorxe/internal/perf"
	"github.com/gorxe/gorxe/internal/perf/stock"
	"github.com/gorxe/gorxe/internal/session"
	"github.com/gorxe/gorxe/roce"
)

var (
	// errServed ends the server after its client.
	errServed = errors.New("served")
	// errTaken refuses further clients. With rdma_cm, they can arrive at the same time.
	errTaken = errors.New("busy with another client: try again when it has ended")
)

// serve waits for one client and serves it. Connections that are not from clients, and clients of
// another test, get an error and do not end the wait.
func (f *flags) serve(ctx context.Context, p *perf.Params, out *printer) (err error) {
	if err := f.device.SetDefaultIface(); err != nil {
		return err
	}
	dev, err := f.device.OpenContext(ctx, f.progress())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	ctx, stop := device.WhilePresent(ctx, dev)
	defer stop()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	only := &onlySession{want: p, out: out, end: end}
	srv := &stock.Server{
		Host: perf.Host{
			Dev: dev, GID: f.device.GIDIndex, Started: only.started, Ended: only.ended,
			Finished: func(_ *perf.Params, _ *session.Session, row *perf.Row) { _ = out.row(row) },
		},
		Want: p, Size: f.test.Size.Int(), Iterations: f.test.Iterations.N,
		AllSizes: f.test.All, Gbits: f.gbits, Guard: f.access.Guard(dev),
	}
	if f.cm {
		err = f.serveCM(ctx, srv, out)
	} else {
		err = f.serveTCP(ctx, srv, out)
	}
	if err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, errServed) {
		return err
	}
	out.foot()
	return nil
}

func (f *flags) serveTCP(ctx context.Context, s *stock.Server, out *printer) error {
	ln, err := exchange.Listen(ctx, f.device.ListenAt(s.Dev), f.port.N)
	if err != nil {
		return err
	}
	if err := f.confine.ApplyAndLog(os.Stderr); err != nil {
		ln.Close()
		return err
	}
	out.waiting(s.Want.Op, "TCP", f.port.N, s.Dev)
	srv := &exchange.Server{
		Sessions: 1,
		Services: map[string]exchange.Handler{perf.Service: s.Serve},
		Detect:   s.Detect,
		Guard:    s.Guard,
		CheckGID: session.CheckGID(s.Dev),
		Log:      s.Guard.Limit(complain),
	}
	return srv.Serve(ctx, ln)
}

func (f *flags) serveCM(ctx context.Context, s *stock.Server, out *printer) error {
	l, err := s.Dev.Listen(netip.AddrPortFrom(netip.Addr{}, uint16(f.port.N)), roce.ListenOptions{})
	if err != nil {
		return err
	}
	defer l.Close()
	if err := f.confine.ApplyAndLog(os.Stderr); err != nil {
		return err
	}
	out.waiting(s.Want.Op, "rdma_cm", f.port.N, s.Dev)
	log := s.Guard.Limit(complain)
	return s.ServeCM(ctx, l, func(peer netip.AddrPort, err error) {
		if err != nil && ctx.Err() == nil {
			log(peer, err)
		}
	})
}

func complain(peer netip.AddrPort, err error) {
	fmt.Fprintf(os.Stderr, "gorxe perf: %v: %v\n", peer, err)
}

// onlySession ends the server when its only session has ended.
type onlySession struct {
	want  *perf.Params
	out   *printer
	end   context.CancelCauseFunc
	begun atomic.Bool
}

func (o *onlySession) started(p *perf.Params, s *session.Session, peer []exchange.QP) error {
	if p.Op != o.want.Op {
		return fmt.Errorf("%w: this server runs %s, but the client requests %s: start both with the same OP",
			perf.ErrParams, o.want.Op, p.Op)
	}
	if o.begun.Swap(true) {
		return errTaken
	}
	o.out.head(p, s, peer)
	return nil
}

func (o *onlySession) ended(err error) {
	if err == nil {
		err = errServed
	}
	o.end(err)
}
