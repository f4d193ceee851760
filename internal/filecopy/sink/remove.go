package sink

import (
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

	top *node
}

// prune deletes the entries of a directory whose IDs are not in seen, which is sorted.
func (r *remover) prune(seen []uint64) {
	err := r.each(r.top.Dir, func(root *os.Root, e fs.DirEntry) {
		id, temporary := part.Temporary(e.Name())
		if !temporary {
			id = part.ID(e.Name())
		}
		// A temporary file belongs to the name whose ID it has.
		if _, keep := slices.BinarySearch(seen, id); keep {
			return
		}
		r.remove(root, r.top.Dir, e)
	})
	if err != nil {
		r.report(r.top.Path(), reason(err))
	}
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
		if len(names) == 0 || err != nil {
			return nil
		}
	}
}

// remove deletes an entry of a directory, with everything in it that the rules do not exclude. It
// reports whether nothing of it remains.
func (r *remover) remove(root *os.Root, d *dirs.Dir, e fs.DirEntry) bool {
	if !r.c.Rules.Includes(d.Join(e.Name()), e.IsDir()) {
		return false
	}
	if e.IsDir() {
		below, empty := d.Child(e.Name()), true
		err := r.each(below, func(root *os.Root, e fs.DirEntry) {
			empty = r.remove(root, below, e) && empty
		})
		r.dirs.Forget(below)
		if err != nil {
			r.report(below.Path(), reason(err))
			return false
		}
		if !empty { // it contains something that the rules exclude
			return false
		}
	}
	if !r.c.DryRun {
		if err := root.Remove(e.Name()); err != nil {
			r.report(d.Join(e.Name()), reason(err))
			return false
		}
	}
	r.mu.Lock()
	r.sum.Deleted++
	r.mu.Unlock()
	if d == r.top.Dir { // the entries below it are not listed
		r.call(r.c.Deleted, d.Join(e.Name()))
		r.answers.add(&record.Answer{Number: r.top.Number, Verdict: record.Deleted, Text: e.Name()})
	}
	return true
}
