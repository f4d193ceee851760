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

// A small file has a temporary name if its file system is not synced as a whole at the end.
func TestTemporaryName(t *testing.T) {
	path, err := os.MkdirTemp("/dev/shm", "gorxe-sink-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(path)
	root, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
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
