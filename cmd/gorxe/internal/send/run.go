package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/rdma"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// retryPause is the time between two attempts.
const retryPause = time.Second

// errResume is added to errors after which the copy can go on.
var errResume = errors.New("run the same command again to continue")

func (f *flags) run(ctx context.Context, args []string, in io.Reader, out,
	diag io.Writer) (err error) {
	copyflags.DelayGarbage()
	p, err := f.plan(args)
	if err != nil {
		return err
	}
	if err := f.Check(); err != nil {
		return err
	}
	req := f.request(p)
	if err := req.Check(); err != nil {
		return cli.Usage(err)
	}
	rules, err := compile(f.rules)
	if err != nil {
		return cli.Usage(err)
	}
	token, err := f.ReadToken()
	if err != nil {
		return err
	}
	var paths []*source.Path
	if !p.pull {
		if paths, err = p.open(in); err != nil {
			return err
		}
		defer closePaths(paths)
		req.Single, req.Top = source.Only(paths)
	}
	peer, err := f.Device.FindPeer(ctx, p.host)
	if err != nil {
		return err
	}
	dev, err := f.OpenDevice(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	t := &transfer{flags: f, plan: p, req: req, rules: rules, paths: paths, dev: dev, token: token,
		addr: netip.AddrPortFrom(peer.Addr, uint16(f.Port.N)), out: out, diag: diag}
	return t.repeat(ctx)
}

// transfer is a copy that may need several connections.
type transfer struct {
	*flags
	*plan

	req       *record.Request
	rules     *pattern.List
	paths     []*source.Path
	dev       *roce.Device
	token     filecopy.Token
	addr      netip.AddrPort
	out, diag io.Writer
}

// repeat runs the transfer. After a failure that may pass it tries again, for the time of --retry.
func (t *transfer) repeat(ctx context.Context) error {
	var last *report  // nil: no connection so far
	var end time.Time // of the attempts
	for {
		r, err := t.once(ctx)
		dialed := r != nil
		sent := dialed && r.Sent > 0
		if dialed {
			if last != nil {
				r.follow(last)
			}
			last = r
		}
		if end.IsZero() || sent { // the time counts from the last success
			end = time.Now().Add(t.retry.D)
		}
		again := temporary(err) && !cli.Interrupted(ctx) && !t.streams()
		if !again || !t.retries(err, dialed, last != nil) || time.Now().After(end) {
			return t.finish(ctx, last, err, again)
		}
		fmt.Fprintf(t.diag, "%v: trying again until %s\n", err, end.Format(time.TimeOnly))
		select {
		case <-ctx.Done():
			return t.finish(ctx, last, cli.ErrInterrupted, true)
		case <-time.After(retryPause):
		}
	}
}

// retries reports whether to try again after a temporary error. By default only failures of the
// network count, of copies that have begun. If the user has set --retry, others count, too.
func (t *transfer) retries(err error, dialed, begun bool) bool {
	switch {
	case t.retry.D == 0:
		return false
	case t.retryAll:
		return true
	case !dialed:
		return begun
	}
	return lost(err)
}

// lost reports whether an error means that the network has failed, or that one of the sides was
// stopped.
func lost(err error) bool {
	var abort *rftp.AbortError
	return errors.Is(err, rftp.ErrLost) || errors.Is(err, rftp.ErrSilent) ||
		errors.As(err, &abort) && abort.Text == rftp.ErrSilent.Error()
}

// once runs the transfer over one connection. The report is nil without a connection.
func (t *transfer) once(ctx context.Context) (r *report, err error) {
	cfg := t.Config()
	cfg.Class = t.class.N
	if t.streams() {
		// The copy cannot be repeated, so only the silence of the peer's program ends it.
		cfg.Connect.Timeout = roce.MaxAckTimeout
	}
	c, err := rdma.Dial(ctx, t.dev, t.addr, t.token, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to 'gorxe recv' at %s: %w", t.host, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	t.LimitGarbage()
	r = newReport(t.host, t.out, t.diag, t.dryRun, t.JSON)
	r.Datapath, r.Block, r.Streams = t.dev.Info().Datapath, c.BlockSize(), c.Streams()
	switch {
	case !t.pull:
		err = t.push(ctx, c, r)
	case t.target == standard:
		r.out = t.diag // standard output is the file
		r.Sum, err = c.PullTo(ctx, t.req, t.out)
		r.Sent = int64(r.Sum.Bytes)
	default:
		err = t.receive(ctx, c, r)
	}
	r.end(time.Now())
	return r, err
}

// request returns what the flags and arguments ask for.
func (f *flags) request(p *plan) *record.Request {
	r := &record.Request{Pull: p.pull, Overwrite: f.Replace(), Delete: f.delete, DryRun: f.dryRun,
		Rules: f.rules}
	if p.pull {
		r.Sources, r.Limit = p.sources, uint64(f.limit.Bytes)
	} else {
		r.Target = p.target
	}
	return r
}

func (t *transfer) push(ctx context.Context, c *rdma.Client, r *report) error {
	cfg := source.Config{Paths: t.paths, Rules: t.rules, Direct: t.Direct, Limit: t.limit.Bytes,
		Failed: r.failed, Deleted: r.deleted, Listed: r.listed, Ignored: r.ignored}
	scan, stop := context.WithCancel(ctx)
	defer stop()
	var total source.Scan
	result, err := c.Push(ctx, t.req, cfg, func(s *source.Source) {
		if cli.Visible(r.diag) {
			go total.Run(scan, t.paths, t.rules)
		}
		r.begin(func() (entries, bytes, allEntries, allBytes int64) {
			p := s.Progress()
			n, size, known := total.Total()
			if !known {
				n, size = -1, -1
			}
			return p.Entries, p.Bytes, n, size
		})
	})
	if result != nil {
		r.Sum, r.Sent = result.Sink, result.Sent
		if err != nil && !errors.Is(err, source.ErrFailed) { // without the sink's summary
			r.Sum.Stored, r.Sum.Bytes = uint64(result.Stored), uint64(result.StoredBytes)
			r.Sum.Deleted = uint64(r.deletedN)
		}
	}
	return err
}

func (t *transfer) receive(ctx context.Context, c *rdma.Client, r *report) error {
	part.Prepare()
	var dir *os.Root
	defer func() {
		if dir != nil {
			_ = dir.Close()
		}
	}()
	received := func() int64 { return 0 } // without holes
	sum, err := c.Pull(ctx, t.req, func(ready *record.Ready) (sink.Config, error) {
		cfg := sink.Config{Overwrite: t.Replace(), Delete: t.delete, DryRun: t.dryRun,
			Rules: t.rules, Direct: t.Direct, Failed: r.failed, Deleted: r.deleted,
			Listed: r.listed}
		err := cfg.LocalTarget(t.target, ready.Single, ready.Top)
		dir = cfg.Dir
		return cfg, err
	}, func(s *sink.Sink) {
		received = s.Received
		r.begin(func() (entries, bytes, allEntries, allBytes int64) {
			return s.Entries(), s.Received(), -1, -1
		})
	})
	r.Sum, r.Sent = sum, received()
	return err
}

// temporary reports whether the same command may succeed after an error.
func temporary(err error) bool {
	return err != nil && !errors.Is(err, source.ErrFailed) && !errors.Is(err, filecopy.ErrToken) &&
		!errors.Is(err, filecopy.ErrRefused) && !errors.Is(err, sink.ErrTarget) && !limited(err) &&
		cli.Status(err) != cli.StatusUsage
}

// limited reports whether an error means that the receiver does not accept so much.
func limited(err error) bool {
	var abort *rftp.AbortError
	return errors.Is(err, sink.ErrLimit) ||
		errors.As(err, &abort) && strings.HasPrefix(abort.Text, sink.ErrLimit.Error())
}

// finish prints the summary and returns the error of the command. again means that the same command
// continues what was begun.
func (t *transfer) finish(ctx context.Context, r *report, err error, again bool) error {
	if r == nil {
		return err
	}
	partial := errors.Is(err, source.ErrFailed)
	if cli.Interrupted(ctx) {
		r.Interrupted = true
		err, again = cli.ErrInterrupted, !t.streams()
	}
	if e := r.print(t.JSON, err != nil && !partial); e != nil {
		return errors.Join(err, e)
	}
	switch {
	case partial || err == nil && r.Sum.Failed > 0:
		what := "copied"
		if t.delete {
			what = "copied or deleted"
		}
		return fmt.Errorf("%s not %s", cli.Count(r.count(), "path"), what)
	case err != nil && again:
		return fmt.Errorf("%w: %w", err, errResume)
	}
	return err
}

// streams reports whether the copy reads from standard input or writes to standard output, so that
// it cannot be repeated.
func (t *transfer) streams() bool {
	return t.pull && t.target == standard || !t.pull && t.paths[0].Stream != nil
}
