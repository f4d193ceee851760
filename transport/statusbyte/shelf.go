package statusbyte

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/gorxe/gorxe/internal/safefile"
)

const (
	// syncInterval is the longest time after which the data of a file that is not full, and the
	// names of new files, begin to be synced.
	syncInterval = time.Second
	// maxRepairs bounds how often one call restores files that somebody removes.
	maxRepairs = 3
	// maxNumber bounds the numbers of files.
	maxNumber = 1 << 62
)

// shelf is a device's directory.
type shelf struct {
	s      *Store
	device uint8
	dir    *os.Root
	id     fs.FileInfo // identifies dir

	next  uint64  // number of the next file
	part  *part   // the file that is being filled, or nil
	full  []*part // files that have not appeared yet, in order
	err   error   // why the first one cannot appear
	ended bool    // EndMark exists

	dirty   bool      // dir has changes that are not synced
	changed int       // packets of files that appeared by such changes
	flush   *flush    // of dir, in progress
	flushed int       // packets of files whose names flush makes permanent
	since   time.Time // of the last flush
}

func fileName(n uint64) string { return fmt.Sprintf("%0*d%s", seqDigits, n, StoreSuffix) }

// openDir opens the device's directory, and creates it if it does not exist.
func (d *shelf) openDir() error {
	name := deviceDir(d.device)
	dir, id, err := safefile.OpenDir(d.s.root, name)
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.mkdir(name); err == nil {
			dir, id, err = safefile.OpenDir(d.s.root, name)
		}
	}
	if err != nil {
		return err
	}
	if d.dir != nil {
		_ = d.dir.Close()
	}
	d.dir, d.id, d.dirty, d.ended = dir, id, true, false
	return nil
}

// mkdir creates the device's directory. It does not create a missing root, whose volume may not be
// mounted.
func (d *shelf) mkdir(name string) error {
	err := d.s.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrNotExist) { // the root was removed, and maybe created again
		if err = d.s.openRoot(); err == nil {
			err = d.s.root.Mkdir(name, 0o755)
		}
	}
	d.s.dirty = true
	return err
}

// current reports whether dir is still the device's directory.
func (d *shelf) current() bool {
	info, err := d.s.root.Lstat(deviceDir(d.device))
	return err == nil && os.SameFile(info, d.id)
}

// ready returns an error if packets cannot be stored now.
func (d *shelf) ready() error {
	d.advancePart() // packets must not follow those that are lost
	if !d.current() {
		return d.repair()
	}
	if d.err != nil {
		return d.advance(false)
	}
	return nil
}

// repair continues after the directory was removed or replaced, or files were removed from it. It
// creates them again with what has not appeared yet.
func (d *shelf) repair() error {
	if !d.current() {
		if err := d.openDir(); err != nil {
			return err
		}
		if err := d.renumber(); err != nil {
			return err
		}
	}
	for _, p := range d.parts() {
		if d.has(p) {
			continue
		}
		if err := d.restore(p); err != nil {
			return err
		}
	}
	return nil
}

// parts returns the files that have not appeared yet.
func (d *shelf) parts() []*part {
	if d.part == nil {
		return d.full
	}
	return append(slices.Clone(d.full), d.part)
}

// has reports whether the directory contains the file of p.
func (d *shelf) has(p *part) bool {
	there, err := d.dir.Lstat(p.name)
	if err != nil {
		return false
	}
	own, err := p.f.Stat()
	return err == nil && os.SameFile(own, there)
}

// renumber makes the numbers of the next files follow those in the directory, which is new.
func (d *shelf) renumber() error {
	names, err := d.names()
	if err != nil {
		return err
	}
	first := d.next
	if parts := d.parts(); len(parts) > 0 {
		first = parts[0].number
	}
	if last := lastNumber(names); last > first {
		for _, p := range d.parts() {
			p.number += last - first
		}
		d.next += last - first
	}
	return nil
}

// put appends a packet to the file that is being filled, and finishes the file when it is full.
func (d *shelf) put(data []byte, segment int64) error {
	if err := d.ready(); err != nil {
		return err
	}
	p, err := d.open()
	if err != nil {
		return err
	}
	before := p.size
	if err := p.write(data); err != nil {
		return err
	}
	err = d.count(p)
	if errors.Is(err, fs.ErrNotExist) {
		err = d.repair()
	}
	if err != nil {
		return errors.Join(err, p.undo(before))
	}
	// The packet is stored. Later failures are reported by the next call.
	if p.size >= segment {
		_ = d.finish()
	} else if time.Since(p.since) >= syncInterval {
		d.sync(p)
	}
	_ = d.advance(false)
	return nil
}

// open returns the file that is being filled.
func (d *shelf) open() (*part, error) {
	if d.ended { // the device starts again: consumers must not stop at the mark
		if err := safefile.Remove(d.dir, EndMark); err != nil {
			return nil, err
		}
		d.ended = false
	}
	if d.part != nil {
		return d.part, nil
	}
	f, err := safefile.Create(d.dir, partFile)
	if err != nil {
		return nil, err
	}
	d.part = &part{f: f, name: partFile, number: d.next, since: time.Now()}
	return d.part, nil
}

// finish completes the file that is being filled. It appears when its data is on disk.
func (d *shelf) finish() error {
	p := d.part
	switch {
	case p == nil:
		return nil
	case p.packets == 0:
		d.part = nil
		return errors.Join(safefile.Remove(d.dir, p.name), p.f.Close())
	}
	if err := p.mend(); err != nil {
		return err
	}
	d.part, d.full, d.next = nil, append(d.full, p), p.number+1
	d.sync(p)
	return nil
}

// advance takes the results of syncs and makes files appear. If wait is set, it waits for the files
// that are full.
func (d *shelf) advance(wait bool) error {
	for repairs := 0; len(d.full) > 0; {
		p := d.full[0]
		over, err := d.collect(p, wait)
		switch {
		case !over:
			return nil
		case err != nil:
			d.drop(p, err)
			d.full = slices.Delete(d.full, 0, 1)
			continue
		case d.s.disk != nil && p.synced < p.size:
			d.sync(p)
			continue
		}
		if err = d.publish(p); errors.Is(err, fs.ErrNotExist) && repairs < maxRepairs {
			repairs++
			if err = d.repair(); err == nil {
				continue
			}
		}
		if d.err = err; err != nil {
			return err
		}
		d.full = slices.Delete(d.full, 0, 1)
	}
	d.err = nil
	d.advancePart()
	if time.Since(d.since) >= syncInterval {
		d.syncDir(false)
	}
	return nil
}

// publish makes a file appear.
func (d *shelf) publish(p *part) error {
	if err := d.dir.Rename(p.name, fileName(p.number)); err != nil {
		return err
	}
	d.dirty = true
	d.changed += p.packets
	_ = p.f.Close() // the data is on disk, or nobody waits for it
	return nil
}

// advancePart takes the result of syncing the file that is being filled.
func (d *shelf) advancePart() {
	p := d.part
	if p == nil || p.flush == nil {
		return
	}
	over, err := d.collect(p, false)
	switch {
	case err != nil:
		d.drop(p, err)
		d.part, d.next = nil, p.number+1
	case over:
		_ = d.count(p) // on failure the name promises less than there is
	}
}

// start begins to sync everything.
func (d *shelf) start() {
	for _, p := range d.parts() {
		d.sync(p)
	}
}

// settle waits until everything is on disk.
func (d *shelf) settle() error {
	if err := d.advance(true); err != nil {
		return err
	}
	for d.s.disk != nil && d.part != nil && d.part.synced < d.part.size {
		d.sync(d.part)
		d.part.flush.wait()
		d.advancePart()
	}
	for d.dirty || d.flush != nil {
		d.syncDir(true)
	}
	return nil
}

// syncDir makes the names in the directory permanent, one sync after the other.
func (d *shelf) syncDir(wait bool) {
	if d.flush != nil {
		if wait {
			d.flush.wait()
		}
		if !d.flush.over() {
			return
		}
		if err := d.flush.err; err != nil {
			d.s.lost[d.device].Packets += uint64(d.flushed)
			d.s.lost[d.device].Err = storeError(err)
		}
		d.flush = nil
	}
	if !d.dirty {
		return
	}
	d.dirty, d.since = false, time.Now()
	f, err := d.dir.Open(".")
	if err != nil || d.s.disk == nil {
		return // the directory was removed, or nothing is to be synced
	}
	files := []*os.File{f}
	if d.s.dirty {
		if root, err := d.s.root.Open("."); err == nil {
			files = append(files, root)
		}
		d.s.dirty = false
	}
	d.flushed, d.changed = d.changed, 0
	d.flush = d.s.disk.start(&flush{files: files, shut: true})
}

// end makes the last files appear and marks the end.
func (d *shelf) end() error {
	if err := d.ready(); err != nil {
		return err
	}
	if err := d.finish(); err != nil {
		return err
	}
	if err := d.advance(true); err != nil {
		return err
	}
	mark, err := safefile.Create(d.dir, EndMark)
	if err != nil {
		return err
	}
	d.ended, d.dirty, d.since = true, true, time.Time{}
	_ = d.advance(false) // begins to sync the directory
	return mark.Close()
}
