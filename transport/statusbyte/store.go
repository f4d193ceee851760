package statusbyte

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Names in a Store. A consumer reads the files with StoreSuffix in the order of their names, which
// are numbers of seqDigits digits. A missing number means missing packets (see Gap). After EndMark
// no more files appear. All other names are private.
const (
	StoreSuffix = ".blk"
	EndMark     = "end"
	// followed by ".N": the first N bytes are complete packets, which survive a crash
	partFile   = ".part"
	lockFile   = ".lock"
	devicePath = "device-%03d"
	seqDigits  = 20
)

// ErrStore means that a device's directory does not accept data.
var ErrStore = errors.New("statusbyte: cannot store data")

// Store writes the packets of each device into a separate directory: files that appear complete, by
// rename, in the order of their names. A consumer that sees only its device's directory can follow
// and remove them. A Store must be used by one goroutine.
type Store struct {
	root    string
	lock    *os.File // locked while the Store is open
	segment int64    // minimum size of a file in bytes; 0: one file per packet
	devices [256]*shelf
	gaps    [256]bool // packets are missing before the next one
}

// shelf is a device's directory.
type shelf struct {
	dir     string
	next    uint64 // number of the next file
	part    *os.File
	name    string // current name of part, which tells how much of it counts
	size    int64  // bytes of part that count
	packets int    // packets in those bytes
	torn    bool   // part may be longer: a write was interrupted
	ended   bool   // EndMark exists
}

// OpenStore creates root if necessary and checks that it is writable. Each file has one packet or,
// if segment is positive, packets one after the other until segment bytes are reached. A directory
// that has files is continued. Only one Store at a time can use a root, because two would use the
// same file names.
func OpenStore(root string, segment int64) (*Store, error) {
	if segment < 0 {
		return nil, fmt.Errorf("%w: segments of %d bytes: choose 0 or more", ErrConfig, segment)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, storeError(err)
	}
	probe, err := os.CreateTemp(root, partFile)
	if err != nil {
		return nil, storeError(err)
	}
	_, err = probe.WriteString("gorxe")
	if err := errors.Join(err, probe.Close(), os.Remove(probe.Name())); err != nil {
		return nil, storeError(err)
	}
	s := &Store{root: root, segment: segment}
	if s.lock, err = os.OpenFile(filepath.Join(root, lockFile), os.O_CREATE|os.O_RDWR,
		0o644); err != nil {
		return nil, storeError(err)
	}
	// Other errors mean a file system without locks.
	if err := unix.Flock(int(s.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); errors.Is(err,
		unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%w: another receiver uses %s: choose another directory",
			ErrStore, root), s.lock.Close())
	}
	return s, nil
}

func storeError(err error) error {
	return fmt.Errorf("%w: %w: free space or choose another directory", ErrStore, err)
}

// Dir returns the directory of a device.
func (s *Store) Dir(device uint8) string {
	return filepath.Join(s.root, fmt.Sprintf(devicePath, device))
}

// Open creates a device's directory now, so a consumer finds it before the first packet.
func (s *Store) Open(device uint8) error {
	_, err := s.shelf(device)
	return err
}

func (s *Store) shelf(device uint8) (*shelf, error) {
	if d := s.devices[device]; d != nil {
		return d, nil
	}
	d := &shelf{dir: s.Dir(device)}
	if err := os.MkdirAll(d.dir, 0o755); err != nil {
		return nil, storeError(err)
	}
	if err := d.resume(); err != nil {
		return nil, storeError(err)
	}
	s.devices[device] = d
	return d, nil
}

// resume continues after the files of an earlier run, however that ended.
func (d *shelf) resume() error {
	list, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		number, ok := strings.CutSuffix(e.Name(), StoreSuffix)
		if n, err := strconv.ParseUint(number, 10, 64); ok && err == nil && n >= d.next {
			d.next = n + 1
		}
	}
	for _, e := range list {
		if size, ok := strings.CutPrefix(e.Name(), partFile+"."); ok {
			if err := d.adopt(e.Name(), size); err != nil {
				return err
			}
		}
	}
	if err := remove(filepath.Join(d.dir, partFile)); err != nil {
		return err
	}
	return remove(filepath.Join(d.dir, EndMark))
}

// adopt publishes the part of an interrupted run up to its last complete packet.
func (d *shelf) adopt(name, size string) error {
	n, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return nil // not ours
	}
	path := filepath.Join(d.dir, name)
	if err := os.Truncate(path, n); err != nil {
		return err
	}
	if err := os.Rename(path, d.file(d.next)); err != nil {
		return err
	}
	d.next++
	return nil
}

func (d *shelf) file(n uint64) string {
	return filepath.Join(d.dir, fmt.Sprintf("%0*d%s", seqDigits, n, StoreSuffix))
}

// remove deletes a file if it exists.
func remove(name string) error {
	if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Put stores a packet's data. After an error nothing of it is stored, and Put may be called again
// with the same data. A device directory that was removed is created again.
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

func (d *shelf) put(data []byte, segment int64) error {
	before := d.size
	if err := d.write(data); err != nil {
		return err
	}
	d.packets++
	if d.size >= segment && (d.publish() == nil || d.part == nil) {
		return nil
	}
	// Either more packets follow, or the file is published with the next packet or at the end.
	err := d.count()
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.rescue(); err == nil && d.size >= segment {
			_ = d.publish() // on failure it is published with the next packet; this one is stored
		}
	}
	if err != nil {
		d.size, d.torn = before, true
		d.packets--
		err = errors.Join(err, d.mend())
	}
	return err
}

// mend removes what was written of an incomplete packet.
func (d *shelf) mend() error {
	if !d.torn {
		return nil
	}
	if err := d.part.Truncate(d.size); err != nil {
		return err
	}
	d.torn = false
	return nil
}

// open creates a new part.
func (d *shelf) open() (*os.File, error) {
	const flags = os.O_CREATE | os.O_TRUNC | os.O_RDWR
	name := filepath.Join(d.dir, partFile)
	f, err := os.OpenFile(name, flags, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		// Create only the device's own directory: if the root is missing the path is not what the
		// user chose.
		if err = os.Mkdir(d.dir, 0o755); err == nil {
			d.ended = false
			f, err = os.OpenFile(name, flags, 0o644)
		}
	}
	return f, err
}

func (d *shelf) write(data []byte) (err error) {
	if d.ended { // the device starts again: consumers must not stop at the mark
		if err := remove(filepath.Join(d.dir, EndMark)); err != nil {
			return err
		}
		d.ended = false
	}
	if d.part == nil {
		f, err := d.open()
		if err != nil {
			return err
		}
		d.part, d.name, d.size, d.packets, d.torn = f, f.Name(), 0, 0, false
	}
	if _, err := d.part.WriteAt(data, d.size); err != nil {
		d.torn = true // WriteAt does not report how much it wrote
		return errors.Join(err, d.mend())
	}
	d.size += int64(len(data))
	return nil
}

// count renames the part so that its name has its size. A restart after a crash then knows what is
// complete.
func (d *shelf) count() error {
	name := filepath.Join(d.dir, fmt.Sprintf("%s.%d", partFile, d.size))
	if err := os.Rename(d.name, name); err != nil {
		return err
	}
	d.name = name
	return nil
}

// rescue copies the part of a removed directory to a new one.
func (d *shelf) rescue() error {
	f, err := d.open()
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, io.NewSectionReader(d.part, 0, d.size)); err != nil {
		return errors.Join(err, f.Close(), os.Remove(f.Name()))
	}
	_ = d.part.Close() // that file has no name anymore
	d.part, d.name, d.torn = f, f.Name(), false
	return d.count()
}

// publish makes the part visible to consumers if it has a packet.
func (d *shelf) publish() error {
	if d.part == nil {
		return nil
	}
	if d.packets == 0 {
		err := errors.Join(remove(d.name), d.part.Close())
		d.part = nil
		return err
	}
	if err := d.mend(); err != nil {
		return err
	}
	if err := os.Rename(d.name, d.file(d.next)); err != nil {
		return err
	}
	d.next++
	err := d.part.Close()
	d.part, d.size = nil, 0
	return err
}

// finish is publish that also works if the directory was removed.
func (d *shelf) finish() error {
	err := d.publish()
	if errors.Is(err, fs.ErrNotExist) {
		if err = d.rescue(); err == nil {
			err = d.publish()
		}
	}
	return err
}

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
	if err := d.finish(); err != nil {
		return storeError(err)
	}
	mark, err := os.OpenFile(filepath.Join(d.dir, EndMark), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return storeError(err)
	}
	d.ended = true
	return mark.Close()
}

// Close publishes the rest of all streams and unlocks the root.
func (s *Store) Close() error {
	errs := []error{s.lock.Close()}
	for _, d := range s.devices {
		if d != nil {
			if err := d.finish(); err != nil {
				errs = append(errs, storeError(err))
			}
		}
	}
	return errors.Join(errs...)
}
