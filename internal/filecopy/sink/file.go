package sink

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"sync"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

const (
	// minResume is the size of the smallest file that has a journal.
	minResume = 4 << 20
	// minExisting is the size of the smallest file for which the sink looks for what an earlier run
	// has left before it asks for the file.
	minExisting = 64 << 10
	// A checkpoint is made when so much was written, or so much time has passed since the last one.
	checkpointBytes = 256 << 20
	checkpointTime  = 5 * time.Second
	// maxRanges bounds the ranges of a file that are not adjacent. A source sends the data between
	// at most 1<<20 holes.
	maxRanges = 2 << 20
)

// fileState is the state of a file.
type fileState uint8

const (
	checking fileState = iota
	asked              // the source sends it
	whole              // everything was written: it is being committed
	over               // stored, skipped or failed
)

// file is a file, link or stream that is not finished.
type file struct {
	record.Entry

	sink *Sink
	dir  *node

	mu      sync.Mutex
	state   fileState
	had     []extent.Extent // ranges of an earlier run
	part    *part.Part      // nil: not open
	small   bool            // its contents arrive as one record
	set     extent.Set      // what was written
	writing int             // writes in progress
	end     *record.End     // nil: more blocks come
	err     error           // set once; then the part is closed after the last write
	keep    bool            // leave the part for a later run
	session uint32          // of its blocks, if opened is set
	opened  bool            // its session has begun
	closed  bool            // and ended
	since   int64           // bytes written before the last checkpoint
	last    time.Time       // of the last checkpoint
	syncing bool            // a checkpoint is being made
	counted bool            // in Sink.locked
	claim   claim           // space that it needs
}

// wanted reports whether the sink has asked for the file.
func (f *file) wanted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state != checking
}

// identity returns what must be the same for a transfer to be resumed.
func (f *file) identity() part.Identity {
	return part.Identity{Size: f.Size, Mtime: f.Mtime, Version: f.Version}
}

func (f *file) resumable() bool { return f.Kind == record.File && f.Size >= minResume }

// prepare finds out what an earlier run has left, and whether there is enough space. It locks a
// file with a journal.
func (f *file) prepare() error {
	root, err := f.sink.dirs.Use(f.dir.Dir)
	if err != nil {
		return err
	}
	defer f.sink.dirs.Release(f.dir.Dir)
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.resumable():
		err = f.open()
	case f.Size >= minExisting && part.Exists(root, f.Name):
		err = removeLeft(root, f.Name)
	}
	if err != nil {
		return err
	}
	if !f.claims() {
		return nil
	}
	return f.claim.take(root, f.Size-f.set.Bytes())
}

// removeLeft removes what an earlier run has left of a file that has no journal now.
func removeLeft(root *os.Root, name string) error {
	p, err := part.Create(root, name)
	if err != nil {
		return err
	}
	p.Discard()
	return nil
}

// open opens the temporary file. The directory stays in use until the part is closed. The caller
// holds mu.
func (f *file) open() error {
	if f.part != nil {
		return nil
	}
	root, err := f.sink.dirs.Use(f.dir.Dir)
	if err != nil {
		return err
	}
	if !f.resumable() {
		f.part, err = f.create(root)
	} else {
		f.last = time.Now()
		err = f.reopen(root)
	}
	if f.part == nil {
		f.sink.dirs.Release(f.dir.Dir)
		return err
	}
	// The contents of a small file are written at once, without holes.
	if err == nil && f.Kind == record.File && !f.small {
		err = f.part.Truncate(f.Size)
	}
	if err == nil && f.sink.c.Direct {
		_ = f.part.UseDirect() // otherwise the page cache is used
	}
	return err
}

// create creates the temporary file of a file without a journal. The caller holds mu.
func (f *file) create(root *os.Root) (*part.Part, error) {
	// A file without a name needs a syncfs at the end (syncTarget): Btrfs can write the name to
	// disk without the data if only the file, before it has a name, and its directory are synced.
	// Direct I/O needs a name.
	if s := f.sink; s.whole && !s.c.Direct {
		h, err := s.dirs.Handle(f.dir.Dir)
		if err != nil {
			return nil, err
		}
		if h.Dev == s.device {
			p, err := part.CreateUnnamed(root, h, f.Name, fs.FileMode(f.Perm))
			if !errors.Is(err, part.ErrUnnamed) {
				return p, err
			}
		}
	}
	return part.Create(root, f.Name)
}

// reopen opens a file with a journal. The caller holds mu.
func (f *file) reopen(root *os.Root) error {
	p, have, err := part.Resume(root, f.Name, f.identity(), record.MaxHave)
	if err != nil {
		return err
	}
	for _, e := range have {
		if err := f.set.Add(e); err != nil {
			p.Keep()
			return err
		}
	}
	f.part, f.had, f.since = p, have, f.set.Bytes()
	return nil
}

// begin begins the contents of a small file.
func (f *file) begin() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != asked || f.end != nil || f.Kind != record.File {
		return fmt.Errorf("%w: the contents of entry %d twice", record.ErrFormat, f.Number)
	}
	f.end = &record.End{Number: f.Number, Size: f.Size, Data: f.Size}
	f.small = true
	return nil
}

// begun notes the session of a large file. It returns false if the file is not wanted any more.
func (f *file) begun(session uint32) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state != asked || f.opened || f.end != nil && f.closed {
		return false
	}
	f.opened, f.session, f.last = true, session, time.Now()
	return true
}

// store stores a small file.
func (f *file) store(d *record.Data) {
	n := int64(len(d.Contents))
	switch {
	case n != f.Size:
		f.fail(fmt.Errorf("%w: %d bytes instead of %d", record.ErrFormat, n, f.Size), false)
		return
	case extent.Sum(d.Contents) != d.CRC:
		f.fail(ErrChecksum, false)
		return
	}
	f.mu.Lock()
	if f.err != nil {
		f.mu.Unlock()
		return
	}
	f.end.CRC = d.CRC
	f.writing++
	e := extent.Extent{Length: n, CRC: d.CRC}
	err := f.open()
	if err == nil {
		err = f.set.Add(e)
	}
	f.closed = true
	f.mu.Unlock()
	if err == nil && n > 0 {
		err = f.part.WriteAt(d.Contents, e)
	}
	f.sink.received.Add(n)
	f.written(err)
}

// hold counts a write that will be done, until written.
func (f *file) hold() {
	f.mu.Lock()
	f.writing++
	f.mu.Unlock()
}

// write writes a block of a large file, after hold.
func (f *file) write(b *filecopy.Block) { f.written(f.writeBlock(b)) }

func (f *file) writeBlock(b *filecopy.Block) error {
	data := b.Data[:b.Len]
	e := extent.Extent{Offset: b.Offset, Length: int64(b.Len), CRC: b.CRC}
	if extent.Sum(data) != b.CRC {
		return ErrChecksum
	}
	f.mu.Lock()
	if f.err != nil || f.state != asked {
		f.mu.Unlock()
		return nil
	}
	err := f.open()
	switch {
	case err != nil:
	case f.Kind == record.File && e.End() > f.Size || e.End() < 0:
		err = fmt.Errorf("%w: a block that ends at %d", record.ErrFormat, e.End())
	case len(f.set.List()) >= maxRanges:
		err = fmt.Errorf("%w: more than %d ranges of one file", record.ErrFormat, maxRanges)
	default:
		err = f.set.Add(e)
	}
	p := f.part
	f.mu.Unlock()
	if err == nil {
		err = f.sink.account(f, e.Length)
	}
	if err == nil {
		err = p.WriteAt(data, e)
		f.release(e.Length)
	}
	f.sink.received.Add(e.Length)
	return err
}

// account counts bytes of a stream, whose size is not known before.
func (s *Sink) account(f *file, n int64) error {
	if f.Kind != record.Stream {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes += n; s.c.MaxBytes > 0 && s.bytes > s.c.MaxBytes {
		return fmt.Errorf("%w: the receiver accepts at most %d bytes at a time", ErrLimit,
			s.c.MaxBytes)
	}
	return nil
}

// written ends a write. An error is noted first: without writes in progress, another worker may
// find the file complete.
func (f *file) written(err error) {
	if err != nil {
		err = f.sink.explain(f, err)
		protocol := errors.Is(err, record.ErrFormat) || errors.Is(err, extent.ErrOverlap)
		f.fail(f.sink.full(f, reason(err)), !protocol)
	}
	f.mu.Lock()
	f.writing--
	f.mu.Unlock()
	f.advance() // closes the part if the file has failed before, and this was the last write
}

// finish ends the contents of a large file, after hold. Blocks may arrive later.
func (f *file) finish(e *record.End) {
	f.mu.Lock()
	err := error(nil)
	if f.err == nil && f.end == nil {
		f.end = e
		err = f.open() // an empty stream, a file of holes, or one that an earlier run has received
	}
	f.mu.Unlock()
	f.written(err)
}

// leave notes that all blocks of the file were delivered, after hold.
func (f *file) leave() {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.written(nil)
}

// advance goes on when a write has ended.
func (f *file) advance() {
	f.mu.Lock()
	f.checkpoint()
	if f.err != nil {
		f.closePart()
	}
	if f.err != nil || f.writing > 0 || f.end == nil || !f.closed || f.state != asked {
		f.mu.Unlock()
		return
	}
	err := f.verify()
	if err == nil {
		f.state = whole
	}
	f.mu.Unlock()
	if err != nil {
		f.fail(err, false)
		return
	}
	f.uncount() // the source can send another file, while this one is written to disk
	f.sink.commits.add(f)
}

// verify compares the whole file with the source's, and sets its attributes. The caller holds mu.
func (f *file) verify() error {
	if n := f.set.Bytes(); n != f.end.Data {
		return fmt.Errorf("%w: %d of %d bytes were sent", record.ErrFormat, n, f.end.Data)
	}
	if f.set.CRC(f.end.Size) != f.end.CRC {
		return fmt.Errorf("the whole file: %w", ErrChecksum)
	}
	return reason(f.part.Attributes(fs.FileMode(f.Perm), f.Mtime))
}

// checkpoint begins a checkpoint if it is time for one. The caller holds mu.
func (f *file) checkpoint() {
	if !f.resumable() || f.part == nil || f.syncing || f.err != nil || f.state != asked ||
		f.set.Bytes()-f.since < checkpointBytes && time.Since(f.last) < checkpointTime {
		return
	}
	f.syncing = true
	f.since = f.set.Bytes()
	f.writing++ // the part stays open
	p := f.part
	f.sink.checks.Go(func() { f.checkpointed(p.Checkpoint()) })
}

// checkpointed ends a checkpoint. Its error means that data was lost. The kernel reports that only
// once, so a later run would trust the data.
func (f *file) checkpointed(err error) {
	f.mu.Lock()
	f.syncing, f.last = false, time.Now()
	f.mu.Unlock()
	if err != nil {
		f.fail(reason(err), false)
	}
	f.written(nil)
}

// fail gives up a file that is not complete. keep leaves what was stored for a later run.
func (f *file) fail(err error, keep bool) { f.giveUp(err, keep, asked) }

// giveUp gives up a file, unless its state is later than the given one. A file that is whole
// belongs to the committer.
func (f *file) giveUp(err error, keep bool, latest fileState) {
	f.mu.Lock()
	if f.err != nil || f.state > latest {
		f.mu.Unlock()
		return
	}
	f.err, f.keep, f.state = err, keep && f.worthwhile(), over
	kept := f.keep
	f.closePart()
	if f.opened && !f.closed {
		f.sink.conn.Refuse(f.session, err.Error())
	}
	f.mu.Unlock()
	if kept && f.sink.c.Delete {
		f.sink.mu.Lock()
		f.dir.kept = append(f.dir.kept, part.ID(f.Name))
		f.sink.mu.Unlock()
	}
	f.sink.failed(&f.Entry, f.dir, err)
	f.sink.forget(f)
}

// worthwhile reports whether a later run can use what is stored. The caller holds mu.
func (f *file) worthwhile() bool {
	return f.resumable() && (f.part == nil || f.set.Bytes() > 0)
}

// closePart closes the part of a file that was not stored, after the last write. The caller holds
// mu.
func (f *file) closePart() {
	if f.part == nil || f.writing > 0 {
		return
	}
	if f.keep {
		f.part.Keep()
	} else {
		f.part.Discard()
	}
	f.part = nil
	f.sink.dirs.Release(f.dir.Dir)
}

// abandon closes the part of a file that was not finished. All work has ended.
func (f *file) abandon() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.keep = f.worthwhile()
	f.closePart()
	f.release(math.MaxInt64)
}

// skip ends a file that is not needed.
func (f *file) skip(why record.Reason) {
	f.mu.Lock()
	f.state = over
	f.mu.Unlock()
	f.sink.skipped(&f.Entry, f.dir, why)
	f.sink.forget(f)
}

// done ends a file that was stored.
func (f *file) done(bytes int64) {
	f.mu.Lock()
	f.state = over
	f.mu.Unlock()
	f.sink.resumed(f.had)
	f.sink.stored(&f.Entry, bytes)
	f.sink.forget(f)
}

// resumed counts bytes of earlier runs.
func (s *Sink) resumed(had []extent.Extent) {
	if len(had) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range had {
		s.sum.Resumed += uint64(e.Length)
	}
}

// forget removes a file that is finished.
func (s *Sink) forget(f *file) {
	f.release(math.MaxInt64)
	f.uncount()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	delete(s.files, f.Number)
	if f.opened {
		s.sending--
	}
	if n := f.dir; n.released() {
		s.mu.Unlock()
		s.leaveDir(n)
		s.mu.Lock()
	}
	s.ended()
}
