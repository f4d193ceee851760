package dirs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/gorxe/gorxe/internal/safefile"
)

func top(t *testing.T) (*Dir, *os.Root) {
	t.Helper()
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return Top(root), root
}

// A directory far below the limit of path names can be created and opened again.
func TestLongPath(t *testing.T) {
	c := &Cache{max: 2, open: new(atomic.Int64)}
	d, _ := top(t)
	name := strings.Repeat("d", 250)
	var all []*Dir
	for range 30 {
		root, err := c.Use(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		c.Release(d)
		d = d.Child(name)
		all = append(all, d)
	}
	for range 2 {
		root, err := c.Use(d)
		if err != nil {
			t.Fatal(err)
		}
		if err := root.WriteFile("file", nil, 0o600); err != nil {
			t.Error(err)
		}
		c.Release(d)
		if len(d.Path()) != 30*251-1 {
			t.Errorf("a path of %d bytes, want %d", len(d.Path()), 30*251-1)
		}
		for _, a := range all { // evicts d
			if _, err := c.Use(a); err != nil {
				t.Fatal(err)
			}
			c.Release(a)
		}
	}
	if n := c.open.Load(); n > 2 {
		t.Errorf("%d directories are open, want at most 2", n)
	}
	c.Close()
	if n := c.open.Load(); n != 0 || c.idle.Len() != 0 {
		t.Errorf("%d directories are open after Close", n)
	}
}

// A directory that was replaced by a symbolic link is not opened.
func TestNoSymlinks(t *testing.T) {
	c := NewCache()
	d, root := top(t)
	outside := t.TempDir()
	if err := errors.Join(os.Symlink(outside, filepath.Join(root.Name(), "out")),
		os.Symlink("in", filepath.Join(root.Name(), "link")), root.Mkdir("in", 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"out", "link"} {
		if _, err := c.Use(d.Child(name)); !errors.Is(err, safefile.ErrUnsafe) {
			t.Errorf("Use(%s) = %v, want ErrUnsafe", name, err)
		}
	}
}

// Many goroutines use and forget directories; nothing stays open.
func TestConcurrent(t *testing.T) {
	c := &Cache{max: 3, open: new(atomic.Int64)}
	d, root := top(t)
	var all []*Dir
	for _, a := range []string{"a", "b", "c", "d"} {
		if err := root.MkdirAll(a+"/x/y", 0o700); err != nil {
			t.Fatal(err)
		}
		all = append(all, d.Child(a), d.Child(a).Child("x"), d.Child(a).Child("x").Child("y"))
	}
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 0))
			for range 500 {
				one := all[r.IntN(len(all))]
				root, err := c.Use(one)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := root.Stat("."); err != nil {
					t.Error(err)
				}
				c.Release(one)
				if r.IntN(4) == 0 {
					c.Forget(one)
				}
			}
		})
	}
	wg.Wait()
	c.Close()
	if n := c.open.Load(); n != 0 {
		t.Errorf("%d directories are open", n)
	}
}

// Caches of several copies together keep no more directories open than one.
func TestShared(t *testing.T) {
	const most = 4
	open := new(atomic.Int64)
	d, root := top(t)
	for _, c := range []*Cache{{max: most, open: open}, {max: most, open: open}} {
		for i := range 2 * most {
			name := fmt.Sprint(i)
			if err := root.MkdirAll(name, 0o700); err != nil {
				t.Fatal(err)
			}
			sub := d.Child(name)
			if _, err := c.Use(sub); err != nil {
				t.Fatal(err)
			}
			c.Release(sub)
		}
		defer func() {
			c.Close()
			if len(c.tops)+c.idle.Len() != 0 {
				t.Error("directories are open after Close")
			}
		}()
	}
	if n := open.Load(); n > most {
		t.Errorf("%d directories are open, want at most %d", n, most)
	}
}
