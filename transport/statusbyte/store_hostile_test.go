package statusbyte

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const victimText = "a file of somebody else"

// plants are what a consumer can put into its own directory.
var plants = map[string]func(victim, name string) error{
	"symbolic link":          os.Symlink,
	"dangling symbolic link": func(v, name string) error { return os.Symlink(v+"-new", name) },
	"hard link":              os.Link,
	"FIFO":                   func(_, name string) error { return unix.Mkfifo(name, 0o600) },
	"directory":              func(_, name string) error { return os.Mkdir(name, 0o700) },
	"full directory":         func(_, name string) error { return os.MkdirAll(name+"/x", 0o700) },
}

// timely fails the test if f blocks.
func timely(t *testing.T, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(testTime):
		t.Fatal("the Store blocks")
	}
}

// Whatever a consumer plants in its directory under the names that the Store uses, before a Store
// is opened or while it runs: no other file changes, nothing blocks, other devices continue, and
// unless it is a directory, the consumer's own packets are stored too.
func TestPlantedFiles(t *testing.T) {
	first := fileName(0)
	for i, name := range []string{".part", ".part.0", ".part.5", ".part.0.3.3", ".part.0.9.9",
		".part.7.-1.0", EndMark, first} {
		for kind, plant := range plants {
			for j, running := range []bool{false, true} {
				for _, segment := range []int64{100 * int64((i+j)%2)} {
					base := t.TempDir()
					where := kind + " " + name
					victim := filepath.Join(base, "victim")
					root := filepath.Join(base, "root")
					dir := filepath.Join(root, "device-001")
					if err := errors.Join(os.MkdirAll(dir, 0o700),
						os.WriteFile(victim, []byte(victimText), 0o600)); err != nil {
						t.Fatal(err)
					}
					timely(t, func() {
						opts := []StoreOption{WithoutSync()} // fast
						if kind == "symbolic link" {
							opts = nil
						}
						s, err := OpenStore(root, segment, opts...)
						if err != nil {
							t.Error(where, err)
							return
						}
						if running {
							err = s.Open(1)
						}
						if err = errors.Join(err,
							plant(victim, filepath.Join(dir, name))); err != nil {
							t.Error(where, err)
							return
						}
						err = errors.Join(s.Put(1, []byte("abc")), s.Put(1, []byte("def")),
							s.End(1))
						isDir := kind == "directory" || kind == "full directory"
						if err != nil && (!isDir || !errors.Is(err, ErrStore)) {
							t.Errorf("%s: %v", where, err)
						}
						if err := errors.Join(s.Put(2, []byte("abc")), s.End(2)); err != nil {
							t.Errorf("%s: another device: %v", where, err)
						}
						if err := s.Close(); err != nil && !isDir {
							t.Errorf("%s: Close() = %v", where, err)
						}
						if mark, err := os.Lstat(filepath.Join(dir, EndMark)); !isDir &&
							(err != nil || !mark.Mode().IsRegular()) {
							t.Errorf("%s: the end mark is %v, %v", where, mark, err)
						}
					})
					if text, err := os.ReadFile(victim); err != nil || string(text) != victimText {
						t.Errorf("%s: the other file contains %q, %v", where, text, err)
					}
					if _, err := os.Lstat(victim + "-new"); !errors.Is(err, fs.ErrNotExist) {
						t.Errorf("%s: a file was created outside the directory", where)
					}
				}
			}
		}
	}
}

// A consumer that plants a directory where the next file must appear stops only its own stream, and
// Put reports that. Otherwise data would pile up unseen.
func TestPlantedDirectoryIsReported(t *testing.T) {
	s, err := OpenStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	obstacle := filepath.Join(s.Dir(1), fileName(0))
	if err := errors.Join(s.Open(1), os.Mkdir(obstacle, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(1, []byte("a")); err != nil {
		t.Fatal(err)
	}
	if err := s.Sync(); !errors.Is(err, ErrStore) {
		t.Errorf("Sync() = %v, want ErrStore", err)
	}
	if err := s.Put(1, []byte("b")); !errors.Is(err, ErrStore) {
		t.Errorf("Put() = %v, want ErrStore", err)
	}
	if err := s.Put(2, []byte("other")); err != nil {
		t.Errorf("another device: Put() = %v", err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	put(t, s, 1, "b")
	if got := files(t, s.Dir(1)); !equal(got, []string{"a", "b"}) {
		t.Errorf("%q", got)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A device's directory that is a symbolic link, or is replaced by one, is refused. If it is
// replaced by another directory, the stream continues there and does not replace its files.
func TestReplacedDirectory(t *testing.T) {
	base := t.TempDir()
	root, other := filepath.Join(base, "root"), filepath.Join(base, "other")
	if err := errors.Join(os.Mkdir(root, 0o700), os.Mkdir(other, 0o700),
		os.Mkdir(filepath.Join(root, "device-009"), 0o700),
		os.Symlink(other, filepath.Join(root, "device-001")),
		os.Symlink("device-009", filepath.Join(root, "device-002")),
		unix.Mkfifo(filepath.Join(root, "device-003"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	timely(t, func() {
		for device := range uint8(3) {
			if err := s.Put(1+device, []byte("x")); !errors.Is(err, ErrStore) {
				t.Errorf("device %d: Put() = %v, want ErrStore", 1+device, err)
			}
		}
	})

	put(t, s, 4, "before ")
	if err := errors.Join(os.Rename(s.Dir(4), filepath.Join(base, "moved")),
		os.Symlink(other, s.Dir(4))); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(4, []byte("x")); !errors.Is(err, ErrStore) {
		t.Errorf("Put() into a symbolic link = %v, want ErrStore", err)
	}
	if err := errors.Join(os.Remove(s.Dir(4)), os.Mkdir(s.Dir(4), 0o700),
		os.WriteFile(filepath.Join(s.Dir(4), fileName(6)), []byte("old"), 0o600)); err != nil {
		t.Fatal(err)
	}
	put(t, s, 4, "after")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := files(t, s.Dir(4)); !equal(got, []string{"old", "before after"}) {
		t.Errorf("%q", got)
	}
	for _, dir := range []string{other, filepath.Join(root, "device-009")} {
		if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
			t.Errorf("%s contains %v, %v", dir, list, err)
		}
	}
}

// A root that is removed and created again is used again, and is locked.
func TestRootCreatedAgain(t *testing.T) {
	root := filepath.Join(t.TempDir(), "root")
	s, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 1, "lost")
	if err := errors.Join(os.RemoveAll(root), os.Mkdir(root, 0o700)); err != nil {
		t.Fatal(err)
	}
	put(t, s, 1, "kept")
	if got := files(t, s.Dir(1)); !equal(got, []string{"kept"}) {
		t.Errorf("%q", got)
	}
	if _, err := OpenStore(root, 0); !errors.Is(err, ErrStore) {
		t.Errorf("a second OpenStore() = %v, want ErrStore", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A lock file that is a link is refused: the Store writes to it.
func TestPlantedLock(t *testing.T) {
	base := t.TempDir()
	victim, root := filepath.Join(base, "victim"), filepath.Join(base, "root")
	if err := errors.Join(os.WriteFile(victim, []byte(victimText), 0o600),
		os.Mkdir(root, 0o700), os.Symlink(victim, filepath.Join(root, lockFile))); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(root, 0); !errors.Is(err, ErrStore) {
		t.Errorf("OpenStore() = %v, want ErrStore", err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != victimText {
		t.Errorf("the other file contains %q, %v", text, err)
	}
}
