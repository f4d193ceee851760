package part

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/safefile"
)

// Identity is what must be equal for a transfer to be resumed.
type Identity struct {
	Size    int64
	Mtime   time.Time
	Version uint64 // of the source's file
}

// Exists reports whether an earlier run may have left a temporary file for the file name.
func Exists(dir *os.Root, name string) bool {
	_, err := dir.Lstat(temporary(name, partSuffix))
	return err == nil
}

// Resume opens the temporary file for the file name, with a journal. It returns the ranges that an
// earlier run has stored, at most limit of them; others do not count any more. If there is none, or
// for another version of the file, it creates an empty one.
func Resume(dir *os.Root, name string, id Identity, limit int) (*Part, []extent.Extent, error) {
	p := &Part{dir: dir, name: name, temp: temporary(name, partSuffix)}
	have, err := p.reopen(id, limit)
	if err == nil {
		return p, have, nil
	}
	if !useless(err) {
		return nil, nil, err // what the earlier run has left stays for a later one
	}
	if p, err = Create(dir, name); err != nil {
		return nil, nil, err
	}
	// Without a journal the file is stored all the same.
	if p.journal, err = p.newJournal(id, nil); err != nil {
		// A crash in Commit may have left one. It would count if its inode is used again.
		if err := safefile.Remove(dir, temporary(name, journalSuffix)); err != nil {
			p.Discard()
			return nil, nil, err
		}
	}
	return p, nil, nil
}

// useless reports whether an error of reopen means that there is nothing to resume, now and later.
// Others may pass: too little space, too many open files, another session.
func useless(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return false
	}
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, safefile.ErrUnsafe) || errors.Is(err, errJournal) || errors.Is(err, unix.EIO)
}

// reopen opens the temporary file and the journal of an earlier run.
func (p *Part) reopen(id Identity, limit int) (have []extent.Extent, err error) {
	f, err := safefile.Open(p.dir, p.temp, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	p.use(f)
	if err := p.lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	all, err := p.readJournal(id)
	if err == nil {
		have = all.List()[:min(len(all.List()), limit)]
		// Sync reports errors of writes by the earlier run, too, and only once.
		if e := p.Sync(); e != nil {
			err = fmt.Errorf("%w: its data was lost: %v", errJournal, e)
		}
	}
	if err == nil {
		// The old journal may contain ranges that were lost. The new one does not.
		p.journal, err = p.newJournal(id, have)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return have, nil
}
