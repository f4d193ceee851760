package recv

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/copyflags"
	"github.com/gorxe/gorxe/internal/cli"
	"github.com/gorxe/gorxe/internal/device"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/rdma"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/internal/guard"
	"github.com/gorxe/gorxe/roce"
	"github.com/gorxe/gorxe/transport/rftp"
)

// standard is the name of standard output.
const standard = "-"

// server serves clients.
type server struct {
	rdma.Server

	dev   *roce.Device
	peers *guard.Guard
	log   guard.Log
	json  bool
	once  bool // serve one client

	mu        sync.Mutex // held while something is printed
	out, diag io.Writer
}

func (f *flags) check() error {
	switch {
	case f.dir == "":
		return cli.Usagef("--dir is missing: name the directory for the files, or - for standard output")
	case f.dir == standard && (f.allowPull || f.allowDelete || f.changed("max-sessions")):
		return cli.Usagef("--dir - takes one file: it excludes --allow-pull, --allow-delete and " +
			"--max-sessions")
	}
	return f.Check()
}

func (f *flags) run(ctx context.Context, out, diag io.Writer) (err error) {
	copyflags.DelayGarbage()
	if err := f.check(); err != nil {
		return err
	}
	s := &server{out: out, diag: diag, json: f.JSON, once: f.once || f.dir == standard}
	s.Server = rdma.Server{Overwrite: f.Replace(), Delete: f.allowDelete, Pull: f.allowPull,
		Direct: f.Direct, MaxFiles: int64(f.files.N), MaxBytes: f.bytes.Bytes, Failed: s.failed,
		Ignored: s.ignored}
	if s.Token, err = f.ReadToken(); err != nil {
		return err
	}
	if err := f.openDir(s); err != nil {
		return err
	}
	if s.Root != nil {
		defer s.Root.Close()
	}
	part.Prepare()
	if err := f.Device.SetDefaultIface(); err != nil {
		return err
	}
	if s.dev, err = f.OpenDevice(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.dev.Close()) }()
	s.peers = f.access.Guard(s.dev)
	s.log = s.peers.Limit(func(peer netip.AddrPort, err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		fmt.Fprintf(diag, "%v: %v\n", peer.Addr(), oneLine(err))
	})
	l, err := rftp.Listen(s.dev, netip.AddrPortFrom(netip.IPv4Unspecified(), uint16(f.Port.N)),
		f.listen(s))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	if err := f.confine.ApplyAndLog(diag, f.dirs()...); err != nil {
		return err
	}
	ctx, stop := device.WhilePresent(ctx, s.dev)
	defer stop()
	fmt.Fprintf(diag, "%s (%s) receives on RDMA port %d into %s, from %v.\n", f.Device.Iface,
		s.dev.Info().Datapath, f.Port.N, f.target(), s.peers)
	f.LimitGarbage()
	return s.serve(ctx, l)
}

// openDir opens the directory, as the user of --user.
func (f *flags) openDir(s *server) (err error) {
	if f.dir == standard {
		s.Stdout, s.out = s.out, s.diag
		signal.Ignore(unix.SIGPIPE) // the sender is told that nobody reads any more
		return nil
	}
	if err := f.confine.AccessFiles(); err != nil {
		return err
	}
	f.confine.Symlinks = true
	// The end of the path keeps OpenRoot from waiting for the writer of a FIFO.
	s.Root, err = os.OpenRoot(f.dir + "/.")
	if p := new(os.PathError); errors.As(err, &p) {
		p.Path = f.dir
	}
	if err != nil {
		return err
	}
	if f.allowPull { // it may be the only purpose
		return nil
	}
	// AT_EACCESS: for the user of AccessFiles.
	err = unix.Faccessat(unix.AT_FDCWD, f.dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if err != nil {
		return fmt.Errorf("store files in %s: %w: choose another --dir, or a --user who may write to it",
			f.dir, err)
	}
	return nil
}

func (f *flags) target() string {
	if f.dir == standard {
		return "standard output"
	}
	return f.dir
}

// dirs lists the directories in which recv stores files.
func (f *flags) dirs() []string {
	if f.dir == standard {
		return nil
	}
	return []string{f.dir}
}

// Instead of rftp.ErrTooMany, which names the fields of rftp.ListenConfig.
var (
	errTooMany = errors.New("too many senders at a time, of all addresses or of this one: start " +
		"recv with a larger --max-sessions")
	errOneSender = errors.New("with --dir -, recv serves one sender")
)

func (f *flags) listen(s *server) rftp.ListenConfig {
	c := rftp.ListenConfig{Config: f.Config(), MaxConns: f.sessions.N, Permits: s.peers.Permits,
		Refused: func(peer netip.AddrPort, err error) {
			switch {
			case !errors.Is(err, rftp.ErrTooMany):
			case f.dir == standard:
				err = errOneSender
			default:
				err = errTooMany
			}
			s.log(peer, fmt.Errorf("the connection was refused: %w", err))
		}}
	c.Hold = true
	c.MaxPeerConns = max(1, f.sessions.N/2)
	if f.dir == standard {
		c.MaxConns = 1
	}
	return c
}

// serve serves clients until ctx ends, or one of them with --once.
func (s *server) serve(ctx context.Context, l *rftp.Listener) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			return s.ended(ctx, err)
		}
		if !s.once {
			clients.Go(func() { _, _ = s.client(ctx, c) })
			continue
		}
		accepted, err := s.client(ctx, c)
		switch {
		case ctx.Err() != nil:
			return s.ended(ctx, err)
		case accepted:
			return err
		} // a client without the token, for example, does not count
	}
}

// ended returns the error of the command after ctx has ended.
func (s *server) ended(ctx context.Context, err error) error {
	switch {
	case cli.Interrupted(ctx):
		return nil
	case s.dev.Err() != nil: // its interface was removed
		return s.dev.Err()
	}
	return err
}

// client serves one client. It reports whether its copy has begun.
func (s *server) client(ctx context.Context, c *rftp.Conn) (bool, error) {
	peer := c.RemoteAddr()
	begin := time.Now()
	r, err := s.Serve(ctx, c)
	if cli.Interrupted(ctx) && err != nil {
		err = cli.ErrInterrupted
	}
	if err != nil && !r.Accepted {
		s.log(peer, err)
		return false, err
	}
	s.print(peer.Addr(), &r, time.Since(begin), err)
	if err == nil && r.Sum.Failed > 0 || errors.Is(err, source.ErrFailed) {
		err = errors.New("some files were not copied")
	}
	return r.Accepted, err
}

// failed prints a path that was not stored.
func (s *server) failed(c *rftp.Conn, path string, err error) {
	s.log(c.RemoteAddr(), fmt.Errorf("%s: %w", name(path), err))
}

// ignored prints a special file that a client does not get.
func (s *server) ignored(c *rftp.Conn, path, kind string) {
	s.log(c.RemoteAddr(), fmt.Errorf("%s: not copied: it is a %s", name(path), kind))
}
