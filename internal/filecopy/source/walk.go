package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

const (
	// readNames is the number of names of a directory that are read at a time.
	readNames = 512
	// openDepth is the depth up to which a directory stays open while those below it are walked.
	// Deeper ones are read completely before.
	openDepth = 64
)

// errTemporary means that the user has named a file that no receiver stores.
var errTemporary = errors.New("the name is reserved for incomplete files of gorxe recv: rename it")

// walkAll announces all entries.
func (s *Source) walkAll(ctx context.Context) error {
	s.pack.enter()
	defer s.pack.leave()
	whole, contents := true, false
	for i, p := range s.c.Paths {
		if i > 0 && (contents || p.Name == "") {
			if err := s.settle(ctx); err != nil {
				return err
			}
		}
		w := walker{Source: s, path: p}
		var err error
		switch {
		case p.Stream != nil:
			err = s.announce(ctx, &item{path: p, Entry: record.Entry{Kind: record.Stream,
				Perm: 0o644, Mtime: time.Now(), Name: p.as()}})
		case p.Name == "":
			contents = true
			var complete bool
			complete, err = w.contents(ctx, dirs.Top(p.Dir), 0, 0)
			whole = whole && complete
		default:
			_, err = w.entry(ctx, dirs.Top(p.Dir), p.Name, p.as(), 0, 0)
		}
		if err != nil {
			return err
		}
	}
	// The target directory belongs to the copy if the contents of a directory were sent into it.
	if contents {
		leave := record.Leave{Number: 0, Complete: whole}
		if err := s.pack.add(ctx, record.AppendLeave(nil, &leave)); err != nil {
			return err
		}
	}
	s.mu.Lock()
	tree := record.Tree{Entries: s.number, Bytes: uint64(s.total)}
	s.walked = true
	s.mu.Unlock()
	return s.pack.add(ctx, record.AppendTree(nil, &tree))
}

// settle waits until the sink has finished everything but directories. Then files of the next path
// replace those of the same name, in the order of the paths.
func (s *Source) settle(ctx context.Context) error {
	s.pack.leave()
	defer s.pack.enter()
	for range window {
		select {
		case s.slots <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	for range window {
		<-s.slots
	}
	return nil
}

// walker announces the entries of one path.
type walker struct {
	*Source
	path *Path
}

// contents announces the entries of a directory. It reports whether all could be read. Its error
// ends the transfer.
func (w *walker) contents(ctx context.Context, d *dirs.Dir, number uint64, depth int) (bool,
	error) {
	if depth > record.MaxDepth {
		err := fmt.Errorf("more than %d directories deep", record.MaxDepth)
		return false, w.missing(ctx, w.dirText(d), err)
	}
	f, err := w.openDir(d)
	if err != nil {
		return false, w.missing(ctx, w.dirText(d), reason(err))
	}
	defer f.Close()
	complete := true
	var later []string // subdirectories, if f does not stay open
	for {
		names, err := f.Readdirnames(readNames)
		for _, name := range names {
			if depth > openDepth && w.isDir(d, name) {
				later = append(later, name)
				continue
			}
			ok, err := w.entry(ctx, d, name, name, number, depth)
			if err != nil {
				return false, err
			}
			complete = complete && ok
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			if err := w.missing(ctx, w.dirText(d), reason(err)); err != nil {
				return false, err
			}
			complete = false
			break
		}
	}
	if later != nil {
		_ = f.Close()
	}
	for _, name := range later {
		ok, err := w.entry(ctx, d, name, name, number, depth)
		if err != nil {
			return false, err
		}
		complete = complete && ok
	}
	return complete, nil
}

// missing reports a path that is not announced because it cannot be read, also to the sink.
func (w *walker) missing(ctx context.Context, path string, err error) error {
	w.report(path, err)
	return w.pack.add(ctx, failure(0, false, fmt.Errorf("%s: %w", path, err)))
}

// dirText returns the path of a directory for messages.
func (w *walker) dirText(d *dirs.Dir) string {
	below := d.Path()
	switch {
	case w.path.Name != "":
		return w.path.Text + below[len(w.path.Name):]
	case below == "":
		return w.path.Text
	}
	return w.path.Text + "/" + below
}

func (w *walker) openDir(d *dirs.Dir) (*os.File, error) {
	root, err := w.dirs.Use(d)
	if err != nil {
		return nil, err
	}
	defer w.dirs.Release(d)
	return root.Open(".")
}

// included reports whether the rules include an entry. The path that they see begins with the name
// that the user gave, or with a name in the directory whose contents are sent.
func (w *walker) included(d *dirs.Dir, name string, dir bool) bool {
	return w.c.Rules.Empty() || w.c.Rules.Includes(d.Join(name), dir)
}

// entry announces one entry, and everything below it. It reports whether everything could be read
// or was excluded by the rules.
func (w *walker) entry(
	ctx context.Context, d *dirs.Dir, name, as string, parent uint64, depth int,
) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	it := &item{dir: d, path: w.path, name: name}
	it.Parent, it.Name = parent, as
	_, temporary := part.Temporary(name)
	if temporary && depth == 0 && w.path.Name != "" {
		return false, w.missing(ctx, it.text(), errTemporary)
	}
	mode, err := w.describe(it)
	switch {
	case err != nil && !(depth == 0 && w.path.Name != "") && errors.Is(err, fs.ErrNotExist):
		return true, nil // removed since the directory was read
	case err != nil:
		return false, w.missing(ctx, it.text(), reason(err))
	case !w.included(d, name, it.Kind == record.Dir):
		return true, nil
	case temporary:
		w.ignore(it.text(), "temporary file of gorxe recv")
		return true, nil
	case it.Kind == 0:
		w.ignore(it.text(), special(mode))
		return true, nil
	}
	if err := w.announce(ctx, it); err != nil {
		return false, err
	}
	if it.Kind != record.Dir {
		return true, nil
	}
	below := d.Child(name)
	complete, err := w.contents(ctx, below, it.Number, depth+1)
	w.dirs.Forget(below)
	if err != nil {
		return false, err
	}
	leave := record.Leave{Number: it.Number, Complete: complete}
	return complete, w.pack.add(ctx, record.AppendLeave(nil, &leave))
}

// describe fills in the attributes of an entry and returns its mode. Kind remains 0 for special
// files.
func (w *walker) describe(it *item) (mode uint32, err error) {
	root, err := w.dirs.Use(it.dir)
	if err != nil {
		return 0, err
	}
	defer w.dirs.Release(it.dir)
	st, err := w.lstat(it.dir, it.name)
	if err != nil {
		return 0, err
	}
	it.Perm, it.Mtime = uint16(st.Mode&0o777), time.Unix(st.Mtim.Unix())
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		it.Kind = record.Dir
	case unix.S_IFREG:
		it.Kind, it.Size = record.File, st.Size
		it.stamp = stampOf(&st)
		it.Version = it.stamp.version()
		it.Sparse = sparse(&st)
	case unix.S_IFLNK:
		it.Kind = record.Symlink
		it.Link, err = root.Readlink(it.name)
	}
	return st.Mode, err
}

// lstat returns the attributes of a name in a directory that is in use.
func (w *walker) lstat(d *dirs.Dir, name string) (st unix.Stat_t, err error) {
	h, err := w.dirs.Handle(d)
	if err != nil {
		return st, err
	}
	_, err = dirs.Retry(func() (int, error) {
		return 0, unix.Fstatat(h.FD, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	return st, err
}

// isDir reports whether a name is that of a directory.
func (w *walker) isDir(d *dirs.Dir, name string) bool {
	if _, err := w.dirs.Use(d); err != nil {
		return false
	}
	defer w.dirs.Release(d)
	st, err := w.lstat(d, name)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
}
