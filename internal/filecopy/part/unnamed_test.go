package part

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/safefile"
)

// shm returns a directory on tmpfs, which has had files without a name since Linux 3.11.
func shm(t *testing.T) (*os.Root, string) {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "gorxe-part-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir, path
}

// unnamed creates a file without a name.
func unnamed(t *testing.T, dir *os.Root, name string) *Part {
	t.Helper()
	d, err := dir.Open(".")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	p, err := CreateUnnamed(dir, int(d.Fd()), uint64(st.Dev), name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A small file appears complete under its name, also in place of another one, and leaves no other
// name. That works with both ways to link a file.
func TestUnnamed(t *testing.T) {
	for _, byProc := range []bool{false, true} {
		notByFD.Store(byProc)
		dir, path := shm(t)
		for _, old := range []string{"", "old contents", "a temporary file"} {
			if old != "" {
				if err := os.WriteFile(filepath.Join(path, "f"), []byte(old), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if old == "a temporary file" {
				if _, err := safefile.Create(dir, temporary("f", partSuffix)); err != nil {
					t.Fatal(err)
				}
			}
			before := len(names(t, path))
			p := unnamed(t, dir, "f")
			if n := len(names(t, path)); n != before {
				t.Errorf("%d names before Commit, want %d", n, before)
			}
			write(t, p, 50, 100)
			write(t, p, 0, 50)
			if err := errors.Join(p.Attributes(0o751, id.Mtime), errors.Join(SyncAll([]*Part{p, p, p,
				p})...), p.Commit(false)); err != nil {
				t.Fatal(err)
			}
			committed(t, path)
		}
	}
	notByFD.Store(false)
}

// A file that must not be replaced, a directory, and a file that another session writes stay.
func TestUnnamedKept(t *testing.T) {
	dir, path := shm(t)
	if err := os.WriteFile(filepath.Join(path, "f"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := unnamed(t, dir, "f")
	if err := p.Commit(true); !errors.Is(err, ErrExists) {
		t.Errorf("Commit(keep) = %v, want ErrExists", err)
	}
	other, err := Create(dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(false); !errors.Is(err, ErrBusy) {
		t.Errorf("Commit() = %v, want ErrBusy", err)
	}
	p.Discard()
	other.Discard()
	if text, err := os.ReadFile(filepath.Join(path, "f")); err != nil || string(text) != "old" {
		t.Errorf("the file has %q, %v", text, err)
	}
	if err := os.Mkdir(filepath.Join(path, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	p = unnamed(t, dir, "d")
	if err := p.Commit(false); err == nil {
		t.Error("a directory was replaced")
	}
	p.Discard()
	if list := names(t, path); len(list) != 2 {
		t.Errorf("names %q, want d and f", list)
	}
}
