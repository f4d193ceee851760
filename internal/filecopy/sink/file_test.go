package sink

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
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

// stub is a connection that is told which sessions end.
type stub struct{ filecopy.Conn }

func (stub) Refuse(uint32, string) {}

// running returns a Sink on tmpfs whose committers run.
func running(t *testing.T) (s *Sink, path string) {
	t.Helper()
	root, path := shm(t)
	s = New(stub{}, Config{Dir: root})
	if err := s.findDevice(); err != nil {
		t.Fatal(err)
	}
	s.commits.start()
	s.begin() // Run goes on
	t.Cleanup(func() {
		s.commits.close()
		s.dirs.Close()
	})
	return s, path
}

// sent returns a file that the source sends.
func sent(s *Sink, size int64) *file {
	f := &file{Entry: record.Entry{Number: 1, Kind: record.File, Name: "f", Size: size, Perm: 0o644},
		sink: s, dir: s.nodes[0], state: asked}
	s.files[1] = f
	f.dir.pending++
	return f
}

// together calls functions in goroutines and waits for them.
func together(list ...func()) {
	var wg sync.WaitGroup
	for _, f := range list {
		wg.Go(f)
	}
	wg.Wait()
}

// A file whose last write fails gets no name, even if other workers end at that moment.
func TestLastWriteFails(t *testing.T) {
	s, path := running(t)
	data := bytes.Repeat([]byte{7}, 4096)
	for range 20_000 {
		f := sent(s, int64(len(data)))
		e := extent.Extent{Length: f.Size, CRC: extent.Sum(data)}
		f.mu.Lock()
		err := errors.Join(f.open(), f.set.Add(e))
		f.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.hold()
		}
		together(func() { f.written(unix.ENOSPC) }, f.leave,
			func() { f.finish(&record.End{Number: 1, Size: f.Size, Data: f.Size, CRC: e.CRC}) })
		if names, err := os.ReadDir(path); err != nil || len(names) > 0 {
			t.Fatalf("%v, %v, want no file", names, err)
		}
	}
}

// The same if the file cannot be opened, because another session writes it.
func TestOpenFails(t *testing.T) {
	s, _ := running(t)
	other, err := part.Create(s.c.Dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Discard()
	for range 5_000 {
		f := sent(s, minResume)
		f.Sparse = true
		f.hold()
		f.hold()
		together(f.leave, func() {
			f.finish(&record.End{Number: 1, Size: f.Size, CRC: extent.Zeros(f.Size)})
		})
		if f.err == nil {
			t.Fatal("the file has no error")
		}
	}
}

// A source that sends two files of the same name gets to know that.
func TestTwice(t *testing.T) {
	s, _ := running(t)
	for i := range uint64(2) {
		f := sent(s, minResume)
		s.files[i+10] = f
		f.mu.Lock()
		err := f.open()
		f.mu.Unlock()
		if got := s.explain(f, err); i == 1 && (!errors.Is(err, part.ErrBusy) ||
			!strings.Contains(got.Error(), `two sources have the name "f"`)) {
			t.Errorf("open() = %v, explain() = %v", err, got)
		}
		defer f.abandon()
	}
}

// After a failed checkpoint, nothing that was written is trusted.
func TestCheckpointFails(t *testing.T) {
	s, _ := running(t)
	for _, failed := range []error{nil, unix.EIO} {
		f := sent(s, minResume)
		data := make([]byte, 1<<20)
		f.hold()
		f.write(&filecopy.Block{Data: data, Len: len(data), CRC: extent.Sum(data)})
		f.hold()
		f.checkpointed(failed)
		if failed == nil {
			f.abandon() // the connection has ended
		}
		p, have, err := part.Resume(s.c.Dir, "f", f.identity(), record.MaxHave)
		if err != nil || len(have) > 0 == (failed != nil) {
			t.Errorf("after a checkpoint with error %v, Resume() = %v, %v", failed, have, err)
		}
		p.Discard()
	}
}

// A source cannot make the sink open files without an end.
func TestMaxSending(t *testing.T) {
	s := New(stub{}, Config{})
	s.most = 3
	for i := range uint64(4) {
		s.files[i+1] = &file{Entry: record.Entry{Number: i + 1}, sink: s, dir: s.nodes[0], state: asked}
		s.last = i + 1
		err := s.opened(&filecopy.Ready{Session: uint32(i), Param: i + 1})
		if over := i == 3; errors.Is(err, record.ErrFormat) != over {
			t.Errorf("session %d: %v", i, err)
		}
	}
	s.begin()
	for _, f := range s.files {
		f.dir.pending++
		s.forget(f)
	}
	if s.sending != 0 {
		t.Errorf("%d files are counted when all are finished", s.sending)
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
