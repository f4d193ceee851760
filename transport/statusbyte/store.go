package statusbyte

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Names in a Store. A consumer reads the files with StoreSuffix in the order of their names; once EndMark is there no more
// will come. Nothing else belongs to it.
const (
	StoreSuffix = ".blk"
	EndMark     = "end"
	partFile    = ".part"
	devicePath  = "device-%03d"
	seqDigits   = 20
)

// ErrStore: a device's directory does not take what was received.
var ErrStore = errors.New("statusbyte: cannot store")

// Store puts each device's packets into a directory of its own: files that appear whole, by rename, in the order of
// their names, so that a consumer, in a container that has nothing but its device's directory, can follow them and take them away. A Store belongs
// to one goroutine.
type Store struct {
	root    string
	segment int64 // bytes that a file has at least; 0: a file for each packet
	devices [256]*shelf
}

// shelf is a device's directory.
type shelf struct {
	dir  string
	next uint64 // number of the next file
	part *os.File
	size int64 // of part
}

// OpenStore makes root if it is not there, and tries whether it can be written to. Files have a packet each, or, if segment is
// positive, packets one behind the other until so many bytes are reached. A directory that has files already
// is continued.
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
	return &Store{root: root, segment: segment}, nil
}

func storeError(err error) error {
	return fmt.Errorf("%w: %w: make room or choose another directory", ErrStore, err)
}

// Dir is the directory of a device.
func (s *Store) Dir(device uint8) string {
	return filepath.Join(s.root, fmt.Sprintf(devicePath, device))
}

// Open makes a device's directory now, so that a consumer finds it before the first packet.
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

// resume goes on behind the files of an earlier run.
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
	for _, old := range []string{EndMark, partFile} {
		if err := os.Remove(filepath.Join(d.dir, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Put stores a packet's data. After an error nothing of it is stored, and Put may be called again with the same data.
func (s *Store) Put(device uint8, data []byte) error {
	d, err := s.shelf(device)
	if err != nil {
		return err
	}
	if err := d.write(data); err != nil {
		return storeError(err)
	}
	if d.size >= s.segment {
		// The data is safe in the part: if the rename fails, it is tried again with the next packet or at the end.
		_ = d.publish()
	}
	return nil
}

func (d *shelf) write(data []byte) (err error) {
	if d.part == nil {
		if d.part, err = os.OpenFile(filepath.Join(d.dir, partFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o644); err != nil {
			d.part = nil
			return err
		}
		d.size = 0
	}
	if n, err := d.part.WriteAt(data, d.size); err != nil {
		if n > 0 {
			err = errors.Join(err, d.part.Truncate(d.size)) // as if nothing had come
		}
		return err
	}
	d.size += int64(len(data))
	return nil
}

// publish makes the part a file that consumers see.
func (d *shelf) publish() error {
	if d.part == nil {
		return nil
	}
	name := filepath.Join(d.dir, fmt.Sprintf("%0*d%s", seqDigits, d.next, StoreSuffix))
	if err := os.Rename(d.part.Name(), name); err != nil {
		return err
	}
	d.next++
	err := d.part.Close()
	d.part = nil
	return err
}

// End publishes what is left of a device's stream and marks its end.
func (s *Store) End(device uint8) error {
	d, err := s.shelf(device)
	if err != nil {
		return err
	}
	if err := d.publish(); err != nil {
		return storeError(err)
	}
	mark, err := os.OpenFile(filepath.Join(d.dir, EndMark), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return storeError(err)
	}
	return mark.Close()
}

// Close publishes what is left of all streams.
func (s *Store) Close() error {
	var errs []error
	for _, d := range s.devices {
		if d != nil {
			if err := d.publish(); err != nil {
				errs = append(errs, storeError(err))
			}
		}
	}
	return errors.Join(errs...)
}
