package part

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/dirs"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/safefile"
)

// ErrBusy means that another session writes the same file.
var ErrBusy = errors.New("another session is writing this file: try again when it has ended")

// ErrExists means that a file must not be replaced.
var ErrExists = errors.New("the file exists")

// createPerm is the mode of temporary files: nobody else reads incomplete files.
const createPerm = 0o600

// directAlign is the alignment of offset, length and memory for direct I/O.
const directAlign = 4096

// Part is a file that is being received. Its directory must stay open. WriteAt may be called
// concurrently for different ranges.
type Part struct {
	dir     *os.Root
	name    string // of the complete file
	temp    string
	f       *os.File                // nil if unnamed
	fd      int                     // descriptor of f, or of the unnamed file
	direct  atomic.Pointer[os.File] // nil: buffered
	journal *journal                // nil: none

	handle *dirs.Handle // of dir, if the file has no name until Commit; otherwise nil
	perm   fs.FileMode  // with which an unnamed file was created, or that Commit sets
	final  bool         // Commit sets perm
}

// Create creates an empty temporary file for the file name. It removes what an earlier run left.
func Create(dir *os.Root, name string) (*Part, error) {
	p := &Part{dir: dir, name: name, temp: temporary(name, partSuffix)}
	f, err := p.create()
	if errors.Is(err, fs.ErrExist) {
		// Left over, or in use by another session: the lock tells.
		if err = p.removeOld(); err == nil {
			f, err = p.create()
		}
	}
	if err != nil {
		return nil, err
	}
	p.use(f)
	return p, nil
}

// use sets the open file.
func (p *Part) use(f *os.File) { p.f, p.fd = f, int(f.Fd()) }

// create creates and locks a new file.
func (p *Part) create() (*os.File, error) {
	const flags = os.O_CREATE | os.O_EXCL | os.O_RDWR | unix.O_NOFOLLOW
	f, err := p.dir.OpenFile(p.temp, flags, createPerm)
	if err != nil {
		return nil, err
	}
	if err := p.lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// lock locks a temporary file and checks that it still has its name: another session may have
// taken it for an old one before.
func (p *Part) lock(f *os.File) error {
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			return ErrBusy
		}
		return fmt.Errorf("lock %s: %w", p.temp, err)
	}
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	now, err := p.dir.Lstat(p.temp)
	if err != nil || !os.SameFile(mine, now) {
		return ErrBusy
	}
	return nil
}

// openOld opens and locks the temporary file of an earlier run. It fails with ErrBusy if a session
// writes it, and with ErrUnsafe if it is not a file of this package.
func (p *Part) openOld() (*os.File, error) {
	f, err := safefile.Open(p.dir, p.temp, os.O_RDWR)
	if errors.Is(err, fs.ErrPermission) { // it has the permissions of the complete file already
		f, err = safefile.Open(p.dir, p.temp, os.O_RDONLY)
	}
	if err != nil {
		return nil, err
	}
	if err := p.lock(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// removeOld removes the temporary files of an earlier run.
func (p *Part) removeOld() error {
	f, err := p.openOld()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		defer f.Close()
	case !errors.Is(err, safefile.ErrUnsafe): // Remove does not follow links
		return err
	}
	journal := strings.TrimSuffix(p.temp, partSuffix) + journalSuffix
	return errors.Join(safefile.Remove(p.dir, journal), safefile.Remove(p.dir, p.temp))
}

// UseDirect lets WriteAt bypass the page cache for blocks that are aligned to 4096 bytes in memory
// and in the file. It returns an error if the file system cannot do that.
func (p *Part) UseDirect() error {
	if p.Unnamed() {
		return ErrUnnamed
	}
	f, err := p.dir.OpenFile(p.temp, os.O_WRONLY|unix.O_DIRECT|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	p.direct.Store(f)
	return nil
}

// Truncate sets the size of the file. Parts that are not written read as zeros.
func (p *Part) Truncate(size int64) error { return unix.Ftruncate(p.fd, size) }

// WriteAt writes a block whose CRC32C was verified, and notes it in the journal.
func (p *Part) WriteAt(data []byte, e extent.Extent) error {
	if err := p.write(data, e.Offset); err != nil {
		return err
	}
	if p.journal != nil {
		p.journal.add(e)
	}
	return nil
}

func (p *Part) write(data []byte, offset int64) error {
	if p.Unnamed() {
		return p.writeUnnamed(data, offset)
	}
	d := p.direct.Load()
	if d != nil && offset%directAlign == 0 && len(data)%directAlign == 0 {
		_, err := d.WriteAt(data, offset)
		// EINVAL: a file system with a larger alignment, or none at all. Continue with the page
		// cache. ErrClosed: another goroutine did that meanwhile.
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, fs.ErrClosed) {
			return err
		}
		if p.direct.CompareAndSwap(d, nil) {
			_ = d.Close()
		}
	}
	_, err := p.f.WriteAt(data, offset)
	return err
}

// Sync writes the data to disk.
func (p *Part) Sync() error { return unix.Fdatasync(p.fd) }

// Checkpoint writes the data to disk and notes that in the journal. It may be called concurrently
// with WriteAt.
func (p *Part) Checkpoint() error {
	if p.journal == nil {
		return p.Sync()
	}
	n := p.journal.length()
	if err := p.Sync(); err != nil {
		return err
	}
	p.journal.synced(p.dir, n)
	return nil
}

// Attributes sets permissions and modification time. A temporary file gets the permissions in
// Commit: they may not permit this process to open it, if it is to be resumed.
func (p *Part) Attributes(perm fs.FileMode, mtime time.Time) error {
	if p.Unnamed() {
		return p.attributesUnnamed(perm, mtime)
	}
	p.perm, p.final = perm.Perm(), true
	return SetTime(p.fd, mtime)
}

// Commit gives the file its name. Its data must be on disk (Sync). It replaces a file or link of
// that name, unless keep is set: then it returns ErrExists. The Part is closed if Commit returns
// nil; otherwise Keep or Discard closes it.
func (p *Part) Commit(keep bool) error {
	if p.Unnamed() {
		return p.commitUnnamed(keep)
	}
	if p.final {
		if err := p.f.Chmod(p.perm); err != nil {
			return err
		}
	}
	var err error
	if keep {
		if err = p.dir.Link(p.temp, p.name); err == nil {
			err = p.dir.Remove(p.temp)
		}
		if errors.Is(err, fs.ErrExist) {
			return ErrExists
		}
	} else {
		err = p.dir.Rename(p.temp, p.name)
	}
	if err != nil {
		return err
	}
	if p.journal != nil {
		_ = p.dir.Remove(temporary(p.name, journalSuffix)) // without its Part, it has no effect
	}
	p.close()
	return nil
}

// Keep closes the file and leaves it for a later run.
func (p *Part) Keep() { p.close() }

// Discard closes and removes the file.
func (p *Part) Discard() {
	// Nothing can be done about errors. A file that remains is replaced by the next run.
	if !p.Unnamed() {
		_ = p.dir.Remove(p.temp)
	}
	if p.journal != nil {
		_ = p.dir.Remove(temporary(p.name, journalSuffix))
	}
	p.close()
}

func (p *Part) close() {
	if p.Unnamed() {
		_ = unix.Close(p.fd)
		return
	}
	if d := p.direct.Swap(nil); d != nil {
		_ = d.Close()
	}
	if p.journal != nil {
		p.journal.close()
	}
	_ = p.f.Close() // write errors were reported by Sync
}
