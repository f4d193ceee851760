package sink

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/record"
)

// A source cannot make the sink remember an unlimited number of ranges of a file.
func TestMaxRanges(t *testing.T) {
	f := &file{Entry: record.Entry{Kind: record.File, Size: 1 << 40}, sink: new(Sink),
		part: new(part.Part), state: asked}
	for i := range int64(maxRanges) {
		if err := f.set.Add(extent.Extent{Offset: 2 * i, Length: 1}); err != nil {
			t.Fatal(err)
		}
	}
	data := []byte{1}
	err := f.writeBlock(&filecopy.Block{Data: data, Len: 1, Offset: 4 * maxRanges,
		CRC: extent.Sum(data)})
	if !errors.Is(err, record.ErrFormat) {
		t.Errorf("writeBlock() = %v, want ErrFormat", err)
	}
}

// When two writes at the same time fail, the last one closes the temporary file, so that a later
// session can lock it.
func TestFailedWrites(t *testing.T) {
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s := New(nil, Config{Dir: root})
	defer s.dirs.Close()
	f := &file{Entry: record.Entry{Number: 1, Kind: record.File, Name: "f", Size: minResume},
		sink: s, dir: s.nodes[0], state: asked}
	s.files[1] = f
	f.mu.Lock()
	err = f.open()
	f.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.hold()
	}
	for range 2 {
		f.written(unix.ENOSPC)
	}
	p, err := part.Create(root, "f")
	if err != nil {
		t.Fatalf("Create() after the failure = %v", err)
	}
	p.Discard()
}

// shm returns a directory on tmpfs, and its path.
func shm(t *testing.T) (*os.Root, string) {
	t.Helper()
	path, err := os.MkdirTemp("/dev/shm", "gorxe-sink-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(path) })
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, path
}

// Without a disk, the worker that has written a small file gives it its name: nothing waits for the
// committers, which do not run here.
func TestNoDisk(t *testing.T) {
	root, path := shm(t)
	s := New(nil, Config{Dir: root, Overwrite: record.Never})
	defer s.dirs.Close()
	if err := s.findDevice(); err != nil {
		t.Fatal(err)
	}
	if s.disk {
		t.Fatal("tmpfs has a disk")
	}
	s.begin() // Run goes on
	for number, data := range []string{"first", "second"} {
		f := &file{Entry: record.Entry{Number: uint64(number), Kind: record.File, Name: "f",
			Size: int64(len(data)), Perm: 0o640}, sink: s, dir: s.nodes[0], state: asked}
		s.files[f.Number] = f
		f.dir.pending++
		if err := f.begin(); err != nil {
			t.Fatal(err)
		}
		f.store(&record.Data{CRC: extent.Sum([]byte(data)), Contents: []byte(data)})
		if f.state != over || len(s.files) > 0 {
			t.Errorf("file %d is in state %d, want %d", number, f.state, over)
		}
	}
	if got, err := os.ReadFile(path + "/f"); err != nil || string(got) != "first" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if s.sum.Stored != 1 || s.sum.Skipped != 1 {
		t.Errorf("%+v, want one file stored and one skipped", s.sum)
	}
}

// A small file has a temporary name if its file system is not synced as a whole at the end.
func TestTemporaryName(t *testing.T) {
	root, path := shm(t)
	for _, c := range []struct {
		name           string
		whole, another bool // the file is on another device than the target directory
		want           int
	}{{"whole", true, false, 0}, {"mounted below", true, true, 1}, {"not whole", false, false, 1}} {
		s := New(nil, Config{Dir: root})
		if err := s.findDevice(); err != nil {
			t.Fatal(err)
		}
		s.whole = c.whole
		if c.another {
			s.device++
		}
		f := &file{Entry: record.Entry{Number: 1, Kind: record.File, Name: "f"}, sink: s,
			dir: s.nodes[0], state: asked, small: true}
		f.mu.Lock()
		err := f.open()
		f.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if list, err := os.ReadDir(path); err != nil || len(list) != c.want {
			t.Errorf("%s: %d names, %v, want %d", c.name, len(list), err, c.want)
		}
		f.abandon()
		s.dirs.Close()
	}
}
