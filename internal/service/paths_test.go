package service

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The socket of a service that was killed is replaced.
func TestStaleSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestUserDir(t *testing.T) {
	setTemporaryDirs(t, t.TempDir(), "")
	path := Paths("lo")[1]
	if err := makeDir(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(path, Options{}); err == nil {
		t.Error("New() = nil in a folder that others may write")
	}
	l, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := Join(path, JoinOptions{}); !errors.Is(err, ErrNone) {
		t.Errorf("Join() = %v in a folder that others may write", err)
	}
	if _, err := Status(t.Context(), path); !errors.Is(err, ErrNone) {
		t.Errorf("Status() = %v in a folder that others may write", err)
	}
	if Paths("../x") != nil {
		t.Error("Paths accepts a name with a slash")
	}
}

// setTemporaryDirs sets the folders for temporary files of all users and of this process, without
// XDG_RUNTIME_DIR.
func setTemporaryDirs(t *testing.T, shared, own string) {
	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", own)
	before := sharedTmp
	sharedTmp = shared
	t.Cleanup(func() { sharedTmp = before })
}

// An error says which folder is missing, and what to do.
func TestNoTemporaryDir(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	setTemporaryDirs(t, missing, missing)
	_, err := New(Paths("lo")[1], Options{})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), missing+", which") ||
		!strings.Contains(err.Error(), "--socket") {
		t.Errorf("New() = %v, want an error that names %s", err, missing)
	}
}

// After su or sudo, and in containers, XDG_RUNTIME_DIR may not exist, or not belong to the user.
func TestForeignRuntimeDir(t *testing.T) {
	tmp := t.TempDir()
	setTemporaryDirs(t, tmp, "")
	foreign := "/proc/1" // of root
	if os.Geteuid() == 0 {
		foreign = t.TempDir()
		if err := os.Chown(foreign, 1, 1); err != nil {
			t.Skip(err)
		}
	}
	for _, dir := range []string{foreign, filepath.Join(tmp, "missing"), "/dev/null"} {
		t.Setenv("XDG_RUNTIME_DIR", dir)
		s, err := New(Paths("lo")[1], Options{})
		if err != nil {
			t.Errorf("with XDG_RUNTIME_DIR=%s: %v", dir, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A program finds the services of its user also if they have another environment.
func TestOtherEnvironment(t *testing.T) {
	shared, private := t.TempDir(), t.TempDir()
	setTemporaryDirs(t, shared, private)
	path := Paths("lo")[1]
	if filepath.Dir(filepath.Dir(path)) != shared {
		t.Errorf("new services are at %s, want them in %s", path, shared)
	}
	s, err := New(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	find := func(runtimeDir, tmp string) {
		t.Setenv("XDG_RUNTIME_DIR", runtimeDir)
		t.Setenv("TMPDIR", tmp)
		if !slices.Contains(PathsOf("lo", 0), path) || !slices.Contains(Sockets(), path) {
			t.Errorf("with XDG_RUNTIME_DIR=%s and TMPDIR=%s, %s is not found", runtimeDir, tmp, path)
		}
	}
	find(t.TempDir(), "")
	find("", t.TempDir())
	find(t.TempDir(), t.TempDir())
	setTemporaryDirs(t, filepath.Join(shared, "missing"), private)
	if path := Paths("lo")[1]; filepath.Dir(filepath.Dir(path)) != private {
		t.Errorf("new services are at %s, want them in %s", path, private)
	}
}
