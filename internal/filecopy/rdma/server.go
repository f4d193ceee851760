package rdma

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
	"github.com/gorxe/gorxe/transport/rftp"
)

// Server describes what clients may do.
type Server struct {
	Root   *os.Root  // everything is below it
	Stdout io.Writer // if set, one file is written there, and Root is not used
	Token  filecopy.Token

	Overwrite record.Overwrite // the most that clients may overwrite
	Delete    bool             // clients may delete
	Pull      bool             // clients may read files
	Direct    bool             // bypass the page cache
	MaxFiles  int64            // entries of one copy; 0: no limit
	MaxBytes  int64            // of one copy; 0: no limit
	// Failed, if set, is called for each path that was not stored, concurrently for different
	// clients.
	Failed func(c *rftp.Conn, path string, err error)
	// Ignored, if set, is called for each special file that a client wants to read. The protocol
	// has no message for that.
	Ignored func(c *rftp.Conn, path, kind string)
}

// Report is what one client has done.
type Report struct {
	Pull     bool
	DryRun   bool
	Target   string         // of a push, or the first source of a pull
	Sum      record.Summary // of a push
	Result   source.Result  // of a pull
	Accepted bool           // the copy has begun
}

// Serve answers one client and closes the connection.
func (s *Server) Serve(ctx context.Context, c *rftp.Conn) (r Report, err error) {
	offer, err := s.offer(ctx, c)
	if err != nil {
		return r, errors.Join(err, end(c, err))
	}
	r.Pull, r.DryRun, r.Target = offer.Pull, offer.DryRun, offer.Target
	if err = s.permits(offer.Request); err == nil {
		if offer.Pull {
			err = s.pull(ctx, c, offer, &r)
		} else {
			err = s.push(ctx, c, offer, &r)
		}
	}
	if err != nil && !r.Accepted {
		// The client ends the connection when it knows why.
		if e := offer.Refuse(ctx, err); e == nil {
			awaitEnd(ctx, c)
		}
	}
	if err != nil && !errors.Is(err, source.ErrFailed) {
		return r, errors.Join(err, end(c, err))
	}
	return r, errors.Join(err, c.Close())
}

// offer receives the request.
func (s *Server) offer(ctx context.Context, c *rftp.Conn) (*filecopy.Offer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, handshakeTime,
		fmt.Errorf("the client has sent no request within %v", handshakeTime))
	defer cancel()
	o, err := filecopy.Serve(ctx, c, s.Token)
	if err != nil && context.Cause(ctx) != nil {
		err = context.Cause(ctx)
	}
	return o, err
}

// permits returns an error if the server does not do what a request asks for.
func (s *Server) permits(r *record.Request) error {
	switch {
	case r.Pull && (!s.Pull || s.Root == nil):
		return errors.New("this receiver does not send files: start it with --allow-pull")
	case r.Delete && !r.Pull && !s.Delete:
		return errors.New("this receiver does not delete files: start it with --allow-delete")
	case s.Stdout != nil && (!r.Single || r.DryRun):
		return errors.New("this receiver writes to its standard output: send one file")
	case s.Root != nil && removed(s.Root):
		return errRemoved
	}
	return nil
}

// errRemoved is the reason for which nothing can be stored any more, also if there is a new
// directory of the same name.
var errRemoved = errors.New("the directory of this receiver was removed: start it again")

// removed reports whether an open directory has no name any more.
func removed(dir *os.Root) bool {
	info, err := dir.Stat(".")
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Nlink == 0
}

func rules(r *record.Request) (*pattern.List, error) {
	list := new(pattern.List)
	for _, rule := range r.Rules {
		if err := list.Add(rule.Exclude, rule.Pattern); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// push stores what the client sends.
func (s *Server) push(ctx context.Context, c *rftp.Conn, o *filecopy.Offer, r *Report) error {
	list, err := rules(o.Request)
	if err != nil {
		return err
	}
	cfg := sink.Config{Overwrite: max(o.Overwrite, s.Overwrite), Delete: o.Delete, DryRun: o.DryRun,
		Rules: list, Direct: s.Direct, MaxFiles: s.MaxFiles, MaxBytes: s.MaxBytes}
	if s.Failed != nil {
		cfg.Failed = func(path string, err error) { s.Failed(c, path, err) }
	}
	if s.Stdout == nil {
		if err = cfg.Target(s.Root, o.Target, o.Single, o.Top); err != nil {
			return err
		}
		if cfg.Dir != nil {
			defer cfg.Dir.Close()
		}
	}
	if err := errors.Join(c.Grant(), o.Accept(ctx, record.Ready{Single: o.Single})); err != nil {
		return err
	}
	r.Accepted = true
	if s.Stdout != nil {
		r.Sum, err = sink.Write(ctx, newConn(c), s.Stdout, s.MaxBytes)
	} else {
		r.Sum, err = sink.New(newConn(c), cfg).Run(ctx)
	}
	if err == nil {
		awaitEnd(ctx, c)
	}
	return err
}

// pull sends what the client asks for.
func (s *Server) pull(ctx context.Context, c *rftp.Conn, o *filecopy.Offer, r *Report) error {
	list, err := rules(o.Request)
	if err != nil {
		return err
	}
	if len(o.Sources) == 0 {
		return fmt.Errorf("%w: a pull without sources", record.ErrFormat)
	}
	r.Target = o.Sources[0]
	cfg := source.Config{Rules: list, Direct: s.Direct, Limit: int64(min(o.Limit, 1<<62))}
	for _, name := range o.Sources {
		p, err := source.OpenBelow(s.Root, name)
		if err != nil {
			return err
		}
		defer p.Close()
		cfg.Paths = append(cfg.Paths, p)
	}
	if s.Failed != nil {
		cfg.Failed = func(path string, err error) { s.Failed(c, path, err) }
	}
	if s.Ignored != nil {
		cfg.Ignored = func(path, kind string) { s.Ignored(c, path, kind) }
	}
	var ready record.Ready
	ready.Single, ready.Top = source.Only(cfg.Paths)
	if err := o.Accept(ctx, ready); err != nil {
		return err
	}
	r.Accepted = true
	result, err := source.New(newConn(c), c.BlockSize(), cfg).Run(ctx)
	if result != nil {
		r.Result = *result
	}
	if err == nil || errors.Is(err, source.ErrFailed) {
		err = errors.Join(err, finish(ctx, c))
	}
	return err
}
