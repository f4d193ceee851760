package statusbyte

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/safefile"
)

// Names in a Store. A consumer reads the files with StoreSuffix in the order of their names, which
// are numbers of seqDigits digits. A missing number means missing packets (see Gap). After EndMark
// no more files appear. All other names are private.
const (
	StoreSuffix = ".blk"
	EndMark     = "end"

	lockFile   = ".lock"
	devicePath = "device-%03d"
	seqDigits  = 20
)

// ErrStore means that a device's directory does not accept data.
var ErrStore = errors.New("statusbyte: cannot store data")

// Store writes the packets of each device into a separate directory: files that appear complete, by
// rename, in the order of their names. A consumer that sees only its device's directory can follow
// and remove them.
//
// A file appears when its data is on disk (fsync), which goroutines of the Store wait for, and
// Advance makes it appear. Sync waits for everything. After a power failure all files that are
// there are complete. See WithoutSync for the alternative.
//
// Consumers may own their directories. Whatever they plant there, the Store neither accesses other
// files nor blocks; at worst their own packets cannot be stored.
//
// A Store must be used by one goroutine.
type Store struct {
	path     string
	root     *os.Root
	lock     *os.File // locked while the Store is open
	segment  int64    // minimum size of a file in bytes; 0: one file per packet
	disk     *disk    // nil: nothing is synced
	boot     string   // identifies the time since the host was started
	rebooted bool     // the host has started again since another Store used the root
	dirty    bool     // root has entries that are not synced
	devices  [256]*shelf
	open     []*shelf  // those in devices
	gaps     [256]bool // packets are missing before the next one
	lost     [256]Loss
}

// Loss are packets that were stored but whose data did not reach the disk.
type Loss struct {
	Packets uint64
	Err     error // the last reason
}

// StoreOption is an option of OpenStore.
type StoreOption func(*Store)

// WithoutSync makes files appear without waiting for the disk. A power failure may then lose files,
// or leave files without their data.
func WithoutSync() StoreOption { return func(s *Store) { s.disk = nil } }

// OpenStore creates root if necessary, but not its parent, and checks that it is writable. Each
// file has one packet or, if segment is positive, packets one after the other until segment bytes
// are reached. A directory that has files is continued. Only one Store at a time can use a root,
// because two would use the same file names.
func OpenStore(root string, segment int64, opts ...StoreOption) (*Store, error) {
	if segment < 0 {
		return nil, fmt.Errorf("%w: segments of %d bytes: choose 0 or more", ErrConfig, segment)
	}
	err := os.Mkdir(root, 0o755)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w: create %s first", ErrStore, err, filepath.Dir(filepath.Clean(root)))
	case err != nil && !errors.Is(err, fs.ErrExist):
		return nil, storeError(err)
	}
	s := &Store{path: root, segment: segment, disk: &disk{}, dirty: true}
	for _, o := range opts {
		o(s)
	}
	if err := s.openRoot(); err != nil {
		return nil, err
	}
	return s, nil
}

// openRoot opens the root and locks it.
func (s *Store) openRoot() error {
	root, err := os.OpenRoot(s.path)
	if err != nil {
		return storeError(err)
	}
	lock, err := safefile.Open(root, lockFile, os.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		lock, err = safefile.Create(root, lockFile)
	}
	if err != nil {
		return errors.Join(storeError(err), root.Close())
	}
	// Other errors mean a file system without locks.
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err,
		unix.EWOULDBLOCK) {
		return errors.Join(fmt.Errorf("%w: another receiver uses %s: choose another directory",
			ErrStore, s.path), lock.Close(), root.Close())
	}
	if s.rebooted, err = s.probe(lock); err != nil {
		return errors.Join(storeError(err), lock.Close(), root.Close())
	}
	if s.root != nil { // it was removed
		_, _ = s.root.Close(), s.lock.Close()
	}
	s.root, s.lock = root, lock
	return nil
}

// probe writes to the lock file, which shows whether the root is writable. What it writes tells a
// later Store whether the host was restarted meanwhile.
func (s *Store) probe(lock *os.File) (rebooted bool, err error) {
	before, err := io.ReadAll(io.LimitReader(lock, maxBootID))
	if err != nil {
		return false, err
	}
	if s.boot == "" {
		s.boot = bootID() // later, the process may have no access to it
	}
	now := s.boot
	if err := lock.Truncate(0); err != nil {
		return false, err
	}
	if _, err := lock.WriteAt([]byte(now), 0); err != nil {
		return false, err
	}
	if s.disk != nil {
		err = lock.Sync()
	}
	return len(before) > 0 && string(before) != now, err
}

const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	maxBootID  = 64
)

// bootID identifies the time since the host was started.
func bootID() string {
	id, err := os.ReadFile(bootIDFile)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(id))
}

func storeError(err error) error {
	return fmt.Errorf("%w: %w: free space or choose another directory", ErrStore, err)
}

// Dir returns the directory of a device.
func (s *Store) Dir(device uint8) string { return filepath.Join(s.path, deviceDir(device)) }

func deviceDir(device uint8) string { return fmt.Sprintf(devicePath, device) }

// Open creates a device's directory now, so a consumer finds it before the first packet.
func (s *Store) Open(device uint8) error {
	_, err := s.shelf(device)
	return err
}

func (s *Store) shelf(device uint8) (*shelf, error) {
	if d := s.devices[device]; d != nil {
		return d, nil
	}
	d := &shelf{s: s, device: device}
	if err := d.openDir(); err != nil {
		return nil, storeError(err)
	}
	if err := d.resume(); err != nil {
		return nil, errors.Join(storeError(err), d.dir.Close())
	}
	s.devices[device], s.open = d, append(s.open, d)
	return d, nil
}

// Put stores a packet's data. After an error nothing of it is stored, and Put may be called again
// with the same data. A device directory that was removed is created again. Put waits for the disk
// while maxUnsynced bytes wait for it.
func (s *Store) Put(device uint8, data []byte) error {
	d, err := s.shelf(device)
	if err == nil {
		err = s.skip(device, d)
	}
	if err != nil {
		return err
	}
	if err := d.put(data, s.segment); err != nil {
		return storeError(err)
	}
	return nil
}

// Gap records that packets of a device are missing before its next one. The packets before the gap
// are published in a separate file, and the next file skips one number.
func (s *Store) Gap(device uint8) { s.gaps[device] = true }

// skip applies a recorded gap.
func (s *Store) skip(device uint8, d *shelf) error {
	if !s.gaps[device] {
		return nil
	}
	if err := d.finish(); err != nil {
		return storeError(err)
	}
	d.next++
	s.gaps[device] = false
	return nil
}

// Advance makes the files appear whose data is on disk meanwhile, and reports whether others are
// left. It does not wait.
func (s *Store) Advance() (more bool) {
	for _, d := range s.open {
		_ = d.advance(false) // the next Put or Sync reports the error
		more = more || len(d.full) > 0
	}
	return more
}

// Sync waits until everything that was stored is on disk. The packets of a file that is not full
// yet do not appear. See Lost for packets that did not reach the disk. The error is that of a
// directory in which files could not be made visible.
func (s *Store) Sync() error {
	for _, d := range s.open { // all at once, so the file system can combine its work
		d.start()
	}
	var errs []error
	for _, d := range s.open {
		if err := d.settle(); err != nil {
			errs = append(errs, storeError(err))
		}
	}
	return errors.Join(errs...)
}

// Lost returns how many packets of a device were stored but did not reach the disk, since
// OpenStore. Advance, Put, End and Sync update it.
func (s *Store) Lost(device uint8) Loss { return s.lost[device] }

// End publishes the rest of a device's stream and marks its end. A gap before the end appears as an
// empty last file. After an error End may be called again.
func (s *Store) End(device uint8) error {
	if s.gaps[device] {
		if err := s.Put(device, nil); err != nil {
			return err
		}
	}
	d, err := s.shelf(device)
	if err != nil {
		return err
	}
	if err := d.end(); err != nil {
		return storeError(err)
	}
	return nil
}

// Close publishes the rest of all streams, waits for the disk, and unlocks the root.
func (s *Store) Close() error {
	var errs []error
	for _, d := range s.open {
		if err := d.finish(); err != nil {
			errs = append(errs, storeError(err))
		}
	}
	errs = append(errs, s.Sync())
	for _, d := range s.open {
		errs = append(errs, d.dir.Close())
	}
	s.disk.stop()
	return errors.Join(append(errs, s.root.Close(), s.lock.Close())...)
}
