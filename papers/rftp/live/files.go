package live

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	smallFile = 4 << 10 // bytes of each file of a tree
	perDir    = 1000    // files in each directory of a tree
	chunk     = 1 << 20
)

// source is what is copied.
type source struct {
	path  string
	bytes int64
}

// sourceName is what the sources are kept under: two places may have the same kind of source.
type sourceName struct {
	kind  kind
	place place
}

func (f *figure) source() sourceName { return sourceName{f.kind, f.place} }

// prepare creates the source of a figure unless it exists.
func (b *bench) prepare(ctx context.Context, f *figure) error {
	if _, ok := b.sources[f.source()]; ok || f.kind == memory {
		return nil
	}
	s := source{path: filepath.Join(b.places[f.place], "big"), bytes: b.Size}
	var err error
	if f.kind == smallTree {
		s = source{path: filepath.Join(b.places[f.place], "tree"), bytes: int64(b.Files) * smallFile}
		err = makeTree(ctx, s.path, b.Files)
	} else {
		err = makeFile(ctx, s.path, s.bytes)
	}
	b.sources[f.source()] = s
	if errors.Is(err, unix.ENOSPC) {
		err = fmt.Errorf("%w: choose another directory, or a smaller --size and fewer --files", err)
	}
	return err
}

func randomBytes(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

// makeFile creates a file of random bytes.
func makeFile(ctx context.Context, name string, size int64) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	r := randomBytes(1)
	for size > 0 && ctx.Err() == nil {
		n, err := io.CopyN(f, r, min(size, 64*chunk))
		if err != nil {
			return err
		}
		size -= n
	}
	return context.Cause(ctx)
}

// makeTree creates a directory with directories of small files.
func makeTree(ctx context.Context, root string, files int) error {
	data := make([]byte, smallFile)
	r := randomBytes(2)
	for i := range files {
		dir := filepath.Join(root, "d"+strconv.Itoa(i/perDir))
		if i%perDir == 0 {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if _, err := io.ReadFull(r, data); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "f"+strconv.Itoa(i)), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compare returns an error unless two files, or all files in two directories, are equal.
func compare(a, b string) error {
	count := func(root string) (n int, err error) {
		err = filepath.WalkDir(root, func(string, fs.DirEntry, error) error { n++; return nil })
		return n, err
	}
	x, err := count(a)
	if err != nil {
		return err
	}
	if y, err := count(b); err != nil || x != y {
		return errors.Join(err, fmt.Errorf("%d paths below %s, but %d below %s", x, a, y, b))
	}
	bufs := [2][]byte{make([]byte, chunk), make([]byte, chunk)}
	return filepath.WalkDir(a, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(a, path)
		if err != nil {
			return err
		}
		return compareFiles(path, filepath.Join(b, rel), bufs)
	})
}

func compareFiles(a, b string, bufs [2][]byte) error {
	var f [2]*os.File
	for i, name := range []string{a, b} {
		var err error
		if f[i], err = os.Open(name); err != nil {
			return err
		}
		defer f[i].Close()
	}
	for {
		n, errA := io.ReadFull(f[0], bufs[0])
		m, errB := io.ReadFull(f[1], bufs[1])
		if n != m || !bytes.Equal(bufs[0][:n], bufs[1][:m]) {
			return fmt.Errorf("%s and %s are different", a, b)
		}
		if errA != nil || errB != nil {
			if errors.Is(errA, io.EOF) || errors.Is(errA, io.ErrUnexpectedEOF) {
				errA = nil
			}
			if errors.Is(errB, io.EOF) || errors.Is(errB, io.ErrUnexpectedEOF) {
				errB = nil
			}
			return errors.Join(errA, errB)
		}
	}
}

// isTmpfs reports whether dir is on a file system in memory.
func isTmpfs(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && (s.Type == unix.TMPFS_MAGIC || s.Type == unix.RAMFS_MAGIC)
}

// openPlaces creates a temporary directory on tmpfs and one on disk, each if the figures need it.
// A place that does not exist here gets a reason in skipped.
func (b *bench) openPlaces() (err error) {
	want := map[place]bool{}
	for i := range b.figures {
		want[b.figures[i].place] = true
	}
	for _, p := range []struct {
		place  place
		name   string
		parent string
	}{{tmpfs, "tmpfs", b.Tmpfs}, {disk, "disk", b.Disk}} {
		if !want[p.place] {
			continue
		}
		if isTmpfs(p.parent) != (p.place == tmpfs) {
			b.skip(p.name, fmt.Sprintf("%s is not on %s: choose another directory with --%s", p.parent,
				p.name, p.name), func(f *figure) bool { return f.place == p.place })
			continue
		}
		if b.places[p.place], err = os.MkdirTemp(p.parent, "gorxe-bench-"); err != nil {
			return err
		}
	}
	return nil
}
