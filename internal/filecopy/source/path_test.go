package source

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A FIFO in place of a directory is an error at once.
func TestOpenFIFO(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(unix.Mkfifo(dir+"/fifo", 0o600), os.Mkdir(dir+"/d", 0o700)); err != nil {
		t.Fatal(err)
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	for _, name := range []string{"fifo/", "fifo/x", "d/", "d/x", "."} {
		done := make(chan error, 2)
		for _, open := range []func() (*Path, error){
			func() (*Path, error) { return Open(dir + "/" + name) },
			func() (*Path, error) { return OpenBelow(top, name) },
		} {
			go func() {
				p, err := open()
				if err == nil {
					p.Close()
				}
				done <- err
			}()
		}
		for range cap(done) {
			select {
			case err := <-done:
				if want := name[0] == 'f'; errors.Is(err, unix.ENOTDIR) != want {
					t.Errorf("%s: %v", name, err)
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: the call blocks", name)
			}
		}
	}
}

// A path with a slash, "." or ".." at its end stands for the contents of a directory.
func TestOpenContents(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(dir+"/d/e", 0o700); err != nil {
		t.Fatal(err)
	}
	top, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	for name, want := range map[string]string{"d": "d", "d/e": "e", "d/../d": "d", "./d/e": "e",
		"d/": "", "d/.": "", "d/./": "", "d/e/..": "", ".": ""} {
		local, err := Open(dir + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		below, err := OpenBelow(top, name)
		if err != nil {
			t.Fatal(err)
		}
		if local.Name != want || below.Name != want {
			t.Errorf("%s: names %q and %q, want %q", name, local.Name, below.Name, want)
		}
		local.Close()
		below.Close()
	}
}
