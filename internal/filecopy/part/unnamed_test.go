package part

import (
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
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

// handle returns the handle of a directory.
func handle(t *testing.T, dir *os.Root) *dirs.Handle {
	t.Helper()
	c := dirs.NewCache()
	t.Cleanup(c.Close)
	h, err := c.Handle(dirs.Top(dir))
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// unnamed creates a file without a name.
func unnamed(t *testing.T, dir *os.Root, name string) *Part {
	t.Helper()
	p, err := CreateUnnamed(dir, handle(t, dir), name, createPerm)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A small file appears complete under its name, also in place of another one, and leaves no other
// name. That works with both ways to link a file.
func TestUnnamed(t *testing.T) {
	for _, failed := range []int32{0, maxByFD} {
		failedByFD.Store(failed)
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
	failedByFD.Store(0)
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

// Files get the permissions that Attributes sets, whatever the umask and the default ACL of the
// directory have removed when they were created.
func TestUnnamedPerm(t *testing.T) {
	for _, tt := range []struct {
		umask int
		acl   bool // the directory has a default ACL that permits others and the group nothing
	}{{umask: 0}, {umask: 0o022}, {umask: 0o777}, {umask: 0, acl: true}} {
		dir, path := shm(t)
		if tt.acl {
			setDefaultACL(t, path)
		}
		h := handle(t, dir)
		umask := unix.Umask(tt.umask)
		for _, perm := range []fs.FileMode{0o644, 0o644, 0o666, 0o666, 0o400, 0, 0, 0o777, 0o644} {
			for _, created := range []fs.FileMode{perm, 0o640} {
				p, err := CreateUnnamed(dir, h, "f", created)
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(p.Attributes(perm, id.Mtime), p.Commit(false)); err != nil {
					t.Fatal(err)
				}
				if st, err := dir.Stat("f"); err != nil || st.Mode().Perm() != perm {
					t.Errorf("umask %#o, ACL %v, created with %v: %v, %v; want %v", tt.umask, tt.acl,
						created, st.Mode(), err, perm)
				}
			}
		}
		unix.Umask(umask)
	}
}

// setDefaultACL gives a directory a default ACL in which only the owner has permissions.
func setDefaultACL(t *testing.T, path string) {
	t.Helper()
	const version, nobody = 2, 0xffffffff
	acl := binary.LittleEndian.AppendUint32(nil, version)
	for _, e := range []struct{ tag, perm uint16 }{{0x01, 7}, {0x04, 0}, {0x20, 0}} {
		acl = binary.LittleEndian.AppendUint16(acl, e.tag)
		acl = binary.LittleEndian.AppendUint16(acl, e.perm)
		acl = binary.LittleEndian.AppendUint32(acl, nobody)
	}
	if err := unix.Setxattr(path, "system.posix_acl_default", acl, 0); err != nil {
		t.Skipf("no ACLs: %v", err)
	}
}
