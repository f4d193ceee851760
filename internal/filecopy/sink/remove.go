package sink

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// readNames is the number of names of a directory that are read at a time.
const readNames = 512

// remover deletes what the source does not have in one directory.
type remover struct {
	*Sink

	top    *node
	kept   []uint64 // sorted IDs of names with temporary files for a later run
	failed int      // names that could not be deleted
	first  error    // of the first of them
}

// fail notes that a name below the top directory could not be deleted, or all of them.
func (r *remover) fail(path string, err error) {
	r.mu.Lock()
	r.sum.Failed++
	r.mu.Unlock()
	r.report(path, fmt.Errorf("not deleted: %w", err))
	if r.failed++; r.first == nil {
		r.first = fmt.Errorf("%s was not deleted: %w", path, err)
	}
}

// err returns what the source is told about names that could not be deleted, nil without any.
func (r *remover) err() error {
	if r.failed > 1 {
		return fmt.Errorf("%w, and %d more", r.first, r.failed-1)
	}
	return r.first
}

// prune deletes the entries of a directory whose IDs are not in seen, which is sorted.
func (r *remover) prune(seen []uint64) {
	err := r.each(r.top.Dir, func(root *os.Root, e fs.DirEntry) {
		id, temporary := part.Temporary(e.Name())
		if !temporary {
			id = part.ID(e.Name())
		}
		// A temporary file belongs to the name whose ID it has.
		if _, keep := slices.BinarySearch(seen, id); !keep {
			var gone []string
			r.remove(root, r.top.Dir, e, &gone)
			r.list(gone)
			return
		}
		if _, keep := slices.BinarySearch(r.kept, id); temporary && !keep {
			r.removeLeft(root, r.top.Dir, e.Name())
		}
	})
	if err != nil {
		r.fail(r.top.Join("*"), reason(err))
	}
}

// removeLeft removes a temporary file that an earlier run has left: its name is finished, or the
// source does not have it. It reports whether nothing remains. Nobody has stored these files under
// their names, so they are neither listed nor counted. One that a session writes stays.
func (r *remover) removeLeft(root *os.Root, d *dirs.Dir, name string) bool {
	err := error(nil)
	if r.c.DryRun {
		err = part.Free(root, name)
	} else {
		err = part.RemoveLeft(root, name)
	}
	if err != nil && !errors.Is(err, part.ErrBusy) {
		r.fail(d.Join(name), reason(err))
	}
	return err == nil
}

// each calls f for the entries of a directory.
func (r *remover) each(d *dirs.Dir, f func(root *os.Root, e fs.DirEntry)) error {
	root, err := r.dirs.Use(d)
	if err != nil {
		return err
	}
	defer r.dirs.Release(d)
	file, err := root.Open(".")
	if err != nil {
		return err
	}
	defer file.Close()
	for {
		names, err := file.ReadDir(readNames)
		for _, e := range names {
			f(root, e)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// remove deletes an entry of a directory, with everything in it that the rules do not exclude. It
// reports whether nothing of it remains. gone gets the paths that were deleted, without those below
// deleted directories.
func (r *remover) remove(root *os.Root, d *dirs.Dir, e fs.DirEntry, gone *[]string) bool {
	if !r.c.Rules.Includes(d.Join(e.Name()), e.IsDir()) {
		return false
	}
	if _, temporary := part.Temporary(e.Name()); temporary && !e.IsDir() {
		return r.removeLeft(root, d, e.Name())
	}
	if e.IsDir() {
		var below []string
		restore := r.unlock(root, e.Name())
		if !r.empty(d.Child(e.Name()), &below) {
			restore()
			*gone = append(*gone, below...)
			return false
		}
	}
	if !r.c.DryRun {
		err := root.Remove(e.Name())
		if errors.Is(err, fs.ErrNotExist) { // another session has deleted it
			return true
		}
		if err != nil {
			r.fail(d.Join(e.Name()), reason(err))
			return false
		}
	}
	r.mu.Lock()
	r.sum.Deleted++
	r.mu.Unlock()
	*gone = append(*gone, d.Join(e.Name()))
	return true
}

// unlock lets the owner of a directory delete its entries: this process may have stored it without
// that permission. restore undoes that.
func (r *remover) unlock(root *os.Root, name string) (restore func()) {
	info, err := root.Lstat(name)
	if err != nil || !info.IsDir() || info.Mode()&userAll == userAll || r.c.DryRun {
		return func() {}
	}
	mode := info.Mode() & attributes
	if r.chmod(root, name, mode|userAll) != nil { // then deleting fails with the reason
		return func() {}
	}
	return func() { _ = r.chmod(root, name, mode) }
}

// empty deletes the entries of a directory. It reports whether none remain.
func (r *remover) empty(d *dirs.Dir, gone *[]string) bool {
	empty := true
	err := r.each(d, func(root *os.Root, e fs.DirEntry) {
		empty = r.remove(root, d, e, gone) && empty
	})
	r.dirs.Forget(d)
	if errors.Is(err, fs.ErrNotExist) { // another session has deleted it
		return true
	}
	if err != nil {
		r.fail(d.Path(), reason(err))
		return false
	}
	return empty // otherwise the rules exclude something, or it could not be deleted
}

// list reports paths that were deleted.
func (r *remover) list(gone []string) {
	for _, path := range gone {
		r.call(r.c.Deleted, path)
		below := path
		if top := r.top.Path(); top != "" {
			below = path[len(top)+1:]
		}
		r.answers.add(&record.Answer{Number: r.top.Number, Verdict: record.Deleted, Text: below})
	}
}
