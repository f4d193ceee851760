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
