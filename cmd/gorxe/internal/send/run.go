package send

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/rdma"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/roce"
)

// errResume is added to errors after which the copy can go on.
var errResume = errors.New("run the same command again to continue")

func (f *flags) run(ctx context.Context, args []string, in io.Reader, out,
	diag io.Writer) (err error) {
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
		req.Single = len(paths) == 1 && paths[0].Single()
	}
	peer, err := f.Device.FindPeer(ctx, p.host)
	if err != nil {
		return err
	}
	dev, err := f.Device.Open(roce.Auto)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	cfg := f.Config()
	cfg.Class = f.class.N
	addr := netip.AddrPortFrom(peer.Addr, uint16(f.Port.N))
	c, err := rdma.Dial(ctx, dev, addr, token, cfg)
	if err != nil {
		return fmt.Errorf("connect to 'gorxe recv' at %s: %w", p.host, err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r := newReport(p.host, out, diag, f.dryRun, f.JSON)
	r.Datapath, r.Block, r.Streams = dev.Info().Datapath, c.BlockSize(), c.Streams()
	switch {
	case !p.pull:
		err = f.push(ctx, c, req, paths, rules, r)
	case p.target == standard:
		r.out = diag // standard output is the file
		r.Sum, err = c.PullTo(ctx, req, out)
		r.Sent = int64(r.Sum.Bytes)
	default:
		err = f.pull(ctx, c, req, p.target, rules, r)
	}
	return f.finish(ctx, r, err)
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

func (f *flags) push(
	ctx context.Context, c *rdma.Client, req *record.Request, paths []*source.Path,
	rules *pattern.List, r *report,
) error {
	cfg := source.Config{Paths: paths, Rules: rules, Direct: f.Direct, Limit: f.limit.Bytes,
		Failed: r.failed, Deleted: r.deleted, Listed: r.listed, Ignored: r.ignored}
	scan, stop := context.WithCancel(ctx)
	defer stop()
	var total source.Scan
	result, err := c.Push(ctx, req, cfg, func(s *source.Source) {
		if cli.Visible(r.diag) {
			go total.Run(scan, paths, rules)
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
	}
	return err
}

func (f *flags) pull(
	ctx context.Context, c *rdma.Client, req *record.Request, target string, rules *pattern.List,
	r *report,
) error {
	part.Prepare()
	var dir *os.Root
	defer func() {
		if dir != nil {
			_ = dir.Close()
		}
	}()
	sum, err := c.Pull(ctx, req, func(single bool) (sink.Config, error) {
		cfg := sink.Config{Overwrite: f.Replace(), Delete: f.delete, DryRun: f.dryRun, Rules: rules,
			Direct: f.Direct, Failed: r.failed, Deleted: r.deleted, Listed: r.listed}
		var err error
		dir, cfg.Rename, err = sink.LocalTarget(target, single, f.dryRun)
		cfg.Dir = dir
		return cfg, err
	}, func(s *sink.Sink) {
		r.begin(func() (entries, bytes, allEntries, allBytes int64) {
			return s.Entries(), s.Received(), -1, -1
		})
	})
	r.Sum, r.Sent = sum, int64(sum.Bytes-sum.Resumed)
	return err
}

// resumable reports whether the same command may succeed after an error.
func resumable(err error) bool {
	return !errors.Is(err, filecopy.ErrToken) && !errors.Is(err, filecopy.ErrRefused) &&
		cli.Status(err) != cli.StatusUsage
}

// finish prints the summary.
func (f *flags) finish(ctx context.Context, r *report, err error) error {
	r.end(time.Now())
	partial := errors.Is(err, source.ErrFailed)
	if cli.Interrupted(ctx) {
		r.Interrupted = true
		err = cli.ErrInterrupted
	}
	if e := r.print(f.JSON, err != nil && !partial); e != nil {
		return errors.Join(err, e)
	}
	switch {
	case partial || err == nil && r.Sum.Failed > 0:
		return fmt.Errorf("%s not copied", cli.Count(r.count(), "path"))
	case err != nil && resumable(err):
		return fmt.Errorf("%w: %w", err, errResume)
	}
	return err
}
