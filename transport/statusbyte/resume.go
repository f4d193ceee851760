package statusbyte

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gorxe/gorxe/internal/safefile"
)

// names lists the directory.
func (d *shelf) names() ([]string, error) {
	f, err := d.dir.Open(".")
	if err != nil {
		return nil, err
	}
	names, err := f.Readdirnames(-1)
	return names, errors.Join(err, f.Close())
}

// lastNumber returns the number that follows those of the files, 0 without files.
func lastNumber(names []string) (next uint64) {
	for _, name := range names {
		number, ok := strings.CutSuffix(name, StoreSuffix)
		if n, err := strconv.ParseUint(number, 10, 64); ok && err == nil && n < maxNumber {
			next = max(next, n+1)
		}
	}
	return next
}

// leftover is a part of an earlier run.
type leftover struct {
	name         string
	number       uint64
	size, synced int64
}

// resume continues after the files of an earlier run, however that ended.
func (d *shelf) resume() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	d.next = lastNumber(names)
	var list []leftover
	for _, name := range names {
		l := leftover{name: name}
		var ok bool
		if l.number, l.size, l.synced, ok = parsePart(name); ok {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b leftover) int {
		return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.name, b.name))
	})
	for _, l := range list {
		if err := d.adopt(l); err != nil {
			return err
		}
	}
	// Somebody may have planted directories with these names. Put reports that.
	_ = safefile.Remove(d.dir, partFile)
	d.ended = safefile.Remove(d.dir, EndMark) != nil
	d.dirty = true
	return nil
}

// adopt makes a part of an interrupted run appear, up to its last packet that is certainly
// complete. What is not a plain file is not the Store's and is removed.
func (d *shelf) adopt(l leftover) error {
	f, err := safefile.Open(d.dir, l.name, os.O_RDWR)
	switch {
	case errors.Is(err, safefile.ErrUnsafe), errors.Is(err, fs.ErrPermission):
		_ = safefile.Remove(d.dir, l.name)
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	number := max(l.number, d.next)
	keep := l.size
	if d.s.rebooted {
		keep = l.synced
	}
	if info, err := f.Stat(); err != nil || info.Size() < keep {
		keep = 0 // the file is not what its name says
	}
	if keep == 0 && l.size > 0 {
		d.next = number + 1 // its packets are missing
		return errors.Join(f.Close(), safefile.Remove(d.dir, l.name))
	}
	err = f.Truncate(keep)
	if err == nil && d.s.disk != nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := d.dir.Rename(l.name, fileName(number)); err != nil {
		return err
	}
	d.next = number + 1
	if keep < l.size {
		d.next++ // the rest of its packets is missing
	}
	return nil
}
