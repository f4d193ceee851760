package filecopy_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/pattern"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// job is a copy between two directories of the same host.
type job struct {
	t      *testing.T
	paths  []string // with a slash at the end: the contents
	list   []*source.Path
	from   string
	to     string
	target string
	pipe   filecopytest.Options
	source source.Config
	sink   sink.Config
	rules  []string // "-pattern" or "+pattern"

	// during, if set, is called while the copy runs. It may close the connection.
	during func(p *filecopytest.Pipe, s *source.Source, k *sink.Sink)
}

// outcome is what a copy has reported.
type outcome struct {
	*source.Result

	sum         record.Summary
	err, kerr   error
	failed      map[string]string // by the source
	kfailed     map[string]string // by the sink
	deleted     []string          // at the source
	kdeleted    []string          // at the sink
	listed      []string
	ignored     map[string]string
	leakedBlock bool
}

func newJob(t *testing.T) *job {
	t.Helper()
	dir := t.TempDir()
	j := &job{t: t, from: filepath.Join(dir, "from"), to: filepath.Join(dir, "to"),
		paths: []string{""}}
	for _, d := range []string{j.from, j.to} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return j
}

// run copies. Paths are relative to from.
func (j *job) run() *outcome {
	j.t.Helper()
	o := &outcome{failed: map[string]string{}, kfailed: map[string]string{},
		ignored: map[string]string{}}
	c, k := j.source, j.sink
	c.Paths = j.list
	if j.list == nil {
		for _, p := range j.paths {
			full := j.from + "/" + p
			path, err := source.Open(full)
			if err != nil {
				j.t.Fatal(err)
			}
			defer path.Close()
			c.Paths = append(c.Paths, path)
		}
	}
	if j.rules != nil {
		c.Rules = new(pattern.List)
		for _, r := range j.rules {
			if err := c.Rules.Add(r[0] == '-', r[1:]); err != nil {
				j.t.Fatal(err)
			}
		}
		k.Rules = c.Rules
	}
	c.Failed = func(p string, err error) { o.failed[j.below(p)] = err.Error() }
	c.Deleted = func(p string) { o.deleted = append(o.deleted, j.below(p)) }
	c.Listed = func(p string) { o.listed = append(o.listed, j.below(p)) }
	c.Ignored = func(p, kind string) { o.ignored[j.below(p)] = kind }
	k.Deleted = func(p string) { o.kdeleted = append(o.kdeleted, p) }
	k.Failed = func(p string, err error) { o.kfailed[p] = err.Error() }
	root, err := os.OpenRoot(j.to)
	if err != nil {
		j.t.Fatal(err)
	}
	defer root.Close()
	single, top := source.Only(c.Paths)
	must(j.t, k.Target(root, j.target, single, top))
	if k.Dir != nil {
		defer k.Dir.Close()
	}
	a, b := filecopytest.New(j.pipe)
	blockSize := j.pipe.BlockSize
	if blockSize == 0 {
		blockSize = 64 << 10
	}
	src, snk := source.New(a, blockSize, c), sink.New(b, k)
	ctx, cancel := context.WithTimeout(j.t.Context(), 60*time.Second)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() {
		if o.sum, o.kerr = snk.Run(ctx); o.kerr != nil {
			b.Close(o.kerr)
		}
	})
	if j.during != nil {
		wg.Go(func() { j.during(a, src, snk) })
	}
	if o.Result, o.err = src.Run(ctx); o.err != nil && !errors.Is(o.err, source.ErrFailed) {
		a.Close(o.err)
	}
	wg.Wait()
	if o.err == nil && o.kerr == nil {
		o.leakedBlock = !eventually(func() bool { return a.Idle() && b.Idle() })
	}
	a.Close(nil)
	return o
}

// below returns a path without the source's directory.
func (j *job) below(path string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, j.from), "/")
}

// eventually waits until f returns true, for a few seconds.
func eventually(f func() bool) bool {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if f() {
			return true
		}
	}
	return f()
}

// ok runs the copy, which must succeed completely.
func (j *job) ok() *outcome {
	j.t.Helper()
	o := j.run()
	if o.err != nil || o.kerr != nil || len(o.failed) > 0 || len(o.kfailed) > 0 {
		j.t.Fatalf("source: %v, sink: %v, failed: %v, %v", o.err, o.kerr, o.failed, o.kfailed)
	}
	if o.leakedBlock {
		j.t.Error("not all blocks were given back")
	}
	return o
}

// write creates a file of size random bytes.
func write(t *testing.T, path string, size int, seed uint64) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, random(size, seed), 0o644); err != nil {
		t.Fatal(err)
	}
}

func random(size int, seed uint64) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, size+8)
	for i := 0; i < size; i += 8 {
		v := r.Uint64()
		for k := range 8 {
			b[i+k] = byte(v >> (8 * k))
		}
	}
	return b[:size]
}

// tree describes the files below a directory: everything that a copy preserves.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	m := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), " ", info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d bytes %x", len(data), extent.Sum(data))
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			text += " -> " + link
		}
		m[path[len(dir)+1:]] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// equal checks that two directories have the same contents.
func equal(t *testing.T, from, to string) {
	t.Helper()
	want, got := tree(t, from), tree(t, to)
	for name, text := range want {
		if got[name] != text {
			t.Errorf("%q: %q, want %q", name, got[name], text)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%q exists only at the target", name)
		}
	}
}

// temporaries returns the names of temporary files below a directory.
func temporaries(t *testing.T, dir string) (list []string) {
	t.Helper()
	for name := range tree(t, dir) {
		if isTemporary(name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// allocated returns the bytes that a file uses on disk.
func allocated(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

func sameFile(t *testing.T, a, b string) {
	t.Helper()
	x, err1 := os.ReadFile(a)
	y, err2 := os.ReadFile(b)
	if err1 != nil || err2 != nil || !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ: %v, %v", a, b, err1, err2)
	}
}

func isTemporary(path string) bool {
	_, ok := part.Temporary(filepath.Base(path))
	return ok
}

func background() context.Context { return context.Background() }
