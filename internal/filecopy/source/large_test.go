package source

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
)

// An error of the disk in the middle of a file is an error of that file, and names it. When the
// disk works again, the copy continues where it was.
func TestReadError(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	const size = 12 << 20
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	other := []byte("fine")
	if err := errors.Join(os.WriteFile(filepath.Join(from, "bad"), data, 0o600),
		os.WriteFile(filepath.Join(from, "other"), other, 0o600)); err != nil {
		t.Fatal(err)
	}
	var broken atomic.Bool
	readAt = func(f *os.File, b []byte, offset int64) (int, error) {
		if broken.Load() && offset >= size/2 {
			return 0, &os.PathError{Op: "read", Path: f.Name(), Err: unix.EIO}
		}
		return f.ReadAt(b, offset)
	}
	t.Cleanup(func() { readAt = (*os.File).ReadAt })
	run := func() (*Result, record.Summary, map[string]string, error) {
		p, err := Open(from + "/")
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		dir, err := os.OpenRoot(to)
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		failed := map[string]string{}
		a, b := filecopytest.New(filecopytest.Options{BlockSize: 256 << 10})
		defer a.Close(nil)
		done := make(chan record.Summary)
		go func() {
			sum, err := sink.New(b, sink.Config{Dir: dir}).Run(t.Context())
			if err != nil {
				t.Error(err)
				b.Close(err)
			}
			done <- sum
		}()
		r, err := New(a, 256<<10, Config{Paths: []*Path{p},
			Failed: func(path string, err error) { failed[path] = err.Error() }}).Run(t.Context())
		if err != nil && !errors.Is(err, ErrFailed) {
			a.Close(err)
		}
		return r, <-done, failed, err
	}
	broken.Store(true)
	r, _, failed, err := run()
	if !errors.Is(err, ErrFailed) || len(failed) != 1 ||
		failed[from+"/bad"] != "input/output error" || r.Failed != 1 {
		t.Errorf("Run() = %+v, %v; failed: %v", r, err, failed)
	}
	if got, err := os.ReadFile(filepath.Join(to, "other")); err != nil || !bytes.Equal(got, other) {
		t.Errorf("other: %q, %v", got, err)
	}
	if _, err := os.Stat(filepath.Join(to, "bad")); err == nil {
		t.Error("an incomplete file has appeared")
	}
	broken.Store(false)
	r, sum, failed, err := run()
	if err != nil || len(failed) > 0 || sum.Resumed < size/4 || r.Sent > size-size/4 {
		t.Errorf("Run() = %+v, %v; failed: %v; summary %+v", r, err, failed, sum)
	}
	if got, err := os.ReadFile(filepath.Join(to, "bad")); err != nil || !bytes.Equal(got, data) {
		t.Errorf("bad: %d bytes, %v", len(got), err)
	}
}
