package safefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victim is a file outside the directory, which nothing may change.
const victimText = "not yours"

// planted calls f with a directory in which "name" is each of the things that an attacker can
// plant, and checks that the victim stays as it was and that f does not block.
func planted(t *testing.T, f func(t *testing.T, kind string, dir *os.Root)) {
	t.Helper()
	for kind, plant := range map[string]func(victim, name string) error{
		"symbolic link":          os.Symlink,
		"dangling symbolic link": func(v, name string) error { return os.Symlink(v+"-new", name) },
		"symbolic link within":   func(_, name string) error { return os.Symlink("other", name) },
		"hard link":              os.Link,
		"FIFO":                   func(_, name string) error { return unix.Mkfifo(name, 0o600) },
		"socket": func(_, name string) error {
			return unix.Mknod(name, unix.S_IFSOCK|0o600, 0)
		},
		"directory": func(_, name string) error { return os.Mkdir(name, 0o700) },
	} {
		t.Run(kind, func(t *testing.T) {
			base := t.TempDir()
			victim, path := filepath.Join(base, "victim"), filepath.Join(base, "dir")
			other := filepath.Join(path, "other")
			err := errors.Join(os.WriteFile(victim, []byte(victimText), 0o600),
				os.Mkdir(path, 0o700), os.WriteFile(other, []byte(victimText), 0o600),
				plant(victim, filepath.Join(path, "name")))
			if err != nil {
				t.Fatal(err)
			}
			dir, err := os.OpenRoot(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = dir.Close() }()
			done := make(chan struct{})
			go func() {
				defer close(done)
				f(t, kind, dir)
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatal("the call blocks")
			}
			for _, name := range []string{victim, other} {
				if text, err := os.ReadFile(name); err != nil || string(text) != victimText {
					t.Errorf("%s contains %q, %v", filepath.Base(name), text, err)
				}
			}
			if _, err := os.Lstat(victim + "-new"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a file was created outside the directory: %v", err)
			}
		})
	}
}

func TestCreate(t *testing.T) {
	planted(t, func(t *testing.T, kind string, dir *os.Root) {
		f, err := Create(dir, "name")
		if kind == "directory" {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("Create() = %v, want ErrUnsafe", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString("mine")
		if err := errors.Join(err, f.Close()); err != nil {
			t.Error(err)
		}
		if text, err := dir.ReadFile("name"); err != nil || string(text) != "mine" {
			t.Errorf("the file contains %q, %v", text, err)
		}
	})
}

func TestOpen(t *testing.T) {
	planted(t, func(t *testing.T, kind string, dir *os.Root) {
		if _, err := Open(dir, "name", os.O_RDWR); !errors.Is(err, ErrUnsafe) {
			t.Errorf("Open() to write = %v, want ErrUnsafe", err)
		}
		f, err := Open(dir, "name", os.O_RDONLY)
		if kind != "hard link" {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("Open() to read = %v, want ErrUnsafe", err)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
	})
}

func TestRemove(t *testing.T) {
	planted(t, func(t *testing.T, kind string, dir *os.Root) {
		err := Remove(dir, "name")
		if kind == "directory" {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("Remove() = %v, want ErrUnsafe", err)
			}
			return
		}
		if _, gone := dir.Lstat("name"); err != nil || !errors.Is(gone, fs.ErrNotExist) {
			t.Errorf("Remove() = %v, Lstat() = %v", err, gone)
		}
		if err := Remove(dir, "name"); err != nil {
			t.Errorf("Remove() of a missing file = %v", err)
		}
	})
}

func TestOpenDir(t *testing.T) {
	planted(t, func(t *testing.T, kind string, dir *os.Root) {
		d, info, err := OpenDir(dir, "name")
		if kind != "directory" {
			if !errors.Is(err, ErrUnsafe) {
				t.Errorf("OpenDir() = %v, want ErrUnsafe", err)
			}
			return
		}
		if err != nil || !info.IsDir() {
			t.Fatalf("OpenDir() = %v, %v", info, err)
		}
		_ = d.Close()
	})
}

// OpenDir does not wait for a writer if a FIFO takes the place of the directory after it was looked
// at.
func TestOpenDirReplaced(t *testing.T) {
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	name, fifo := filepath.Join(path, "name"), filepath.Join(path, "fifo")
	if err := errors.Join(os.Mkdir(name, 0o700), unix.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended, stop := make(chan struct{}), make(chan struct{})
	defer close(stop)
	go func() {
		defer close(ended)
		for range 3000 {
			if d, _, err := OpenDir(dir, "name"); err == nil {
				_ = d.Close()
			}
		}
	}()
	go func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, name, unix.AT_FDCWD, fifo, unix.RENAME_EXCHANGE)
			}
		}
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Error("OpenDir waits for the writer of a FIFO")
	}
}
