package part

import (
	"errors"
	"sync"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
)

// together calls f in several goroutines at the same time, many times, and returns their errors.
func together(f func() error) error {
	const goroutines, calls = 4, 500
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for range calls {
				errs[i] = errors.Join(errs[i], f())
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// first returns the first of joined errors.
func first(err error) error {
	for {
		list, ok := err.(interface{ Unwrap() []error })
		if !ok {
			return err
		}
		err = list.Unwrap()[0]
	}
}

// Sessions that replace the same small file at the same time do not disturb each other.
func TestUnnamedTogether(t *testing.T) {
	dir, path := shm(t)
	h := handle(t, dir)
	err := together(func() error {
		p, err := CreateUnnamed(dir, h, "f", createPerm)
		if err != nil {
			return err
		}
		err = errors.Join(p.WriteAt(content, extent.Extent{Length: id.Size}),
			p.Attributes(0o751, id.Mtime))
		if err == nil {
			err = p.Commit(false)
		}
		if err != nil {
			p.Discard()
		}
		return err
	})
	if err != nil {
		t.Errorf("one of the sessions: %v", first(err))
	}
	committed(t, path)
}

// Sessions that store the same symbolic link at the same time do not disturb each other.
func TestSymlinkTogether(t *testing.T) {
	dir, path := root(t)
	err := together(func() error { return Symlink(dir, "f", "target", id.Mtime, false) })
	if err != nil {
		t.Errorf("one of the sessions: %v", first(err))
	}
	info, err := dir.Lstat("f")
	if err != nil || !info.ModTime().Equal(id.Mtime) {
		t.Errorf("the link has the time %v, %v", info.ModTime(), err)
	}
	if list := names(t, path); len(list) != 1 {
		t.Errorf("names %q, want only the link", list)
	}
}
