package filecopy_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy"
	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/part"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// fails runs a copy in which some paths fail, for the reason that contains the text, and all others
// arrive.
func (j *job) fails(want map[string]string) *outcome {
	j.t.Helper()
	o := j.run()
	if !errors.Is(o.err, source.ErrFailed) || o.kerr != nil {
		j.t.Fatalf("source: %v, sink: %v, want ErrFailed and no error", o.err, o.kerr)
	}
	for path, text := range want {
		if !strings.Contains(o.failed[path], text) {
			j.t.Errorf("%s: %q, want an error with %q", path, o.failed[path], text)
		}
	}
	if len(o.failed) != len(want) || o.Result.Failed != int64(len(want)) ||
		o.sum.Failed != uint64(len(want)) {
		j.t.Errorf("%d paths failed: %v, %d at the sink: %v, want %d", o.Result.Failed, o.failed,
			o.sum.Failed, o.kfailed, len(want))
	}
	if o.leakedBlock {
		j.t.Error("not all blocks were given back")
	}
	return o
}

// changeDuring makes the copy of a file slow, and changes the file while it is being sent.
func (j *job) changeDuring(change func(path string)) {
	path := filepath.Join(j.from, "changing")
	write(j.t, path, 2<<20, 1)
	write(j.t, j.from+"/other", 100_000, 2)
	write(j.t, j.from+"/small", 10, 2)
	j.source.Limit = 4 << 20
	j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
		if !eventually(func() bool { return s.Progress().Sent > 512<<10 }) {
			j.t.Error("the transfer did not begin")
		}
		change(path)
	}
}

// A file that changes while it is being sent fails alone, and nothing of it appears.
func TestFileChanges(t *testing.T) {
	for name, c := range map[string]struct {
		change func(path string)
		text   string
	}{
		"shrinks": {func(p string) { _ = os.Truncate(p, 1000) },
			"shrank from 2097152 to 1000 bytes"},
		"grows": {func(p string) {
			f, err := os.OpenFile(p, os.O_APPEND|os.O_WRONLY, 0)
			if err == nil {
				_, _ = f.WriteString("more")
				_ = f.Close()
			}
		}, "grew from 2097152 to 2097156 bytes"},
		"is rewritten": {func(p string) {
			f, err := os.OpenFile(p, os.O_WRONLY, 0)
			if err == nil {
				_, _ = f.WriteAt([]byte("x"), 2<<20-1)
				_ = f.Close()
			}
		}, "changed during the transfer"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			j.changeDuring(c.change)
			j.fails(map[string]string{"changing": c.text})
			for _, name := range []string{"other", "small"} {
				sameFile(t, filepath.Join(j.from, name), filepath.Join(j.to, name))
			}
			if _, err := os.Stat(j.to + "/changing"); err == nil {
				t.Error("a file that changed has appeared")
			}
			if list := temporaries(t, j.to); len(list) > 0 {
				t.Errorf("left over: %q", list)
			}
			j.during, j.source.Limit = nil, 0
			j.ok()
			equal(t, j.from, j.to)
		})
	}
}

// A file that has another type or is gone when it is opened fails alone.
func TestFileVanishes(t *testing.T) {
	j := newJob(t)
	for i := range 200 {
		write(t, fmt.Sprintf("%s/f%03d", j.from, i), 2000, 1)
	}
	// The sink is asked about the files in the order of the directory, so most are still to come.
	j.pipe.Blocks, j.pipe.BlockSize = 2, 16<<10
	j.source.Limit = 1 << 20
	j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
		eventually(func() bool { return s.Progress().Sent > 0 })
		for i := range 200 {
			name := fmt.Sprintf("%s/f%03d", j.from, i)
			switch i % 4 {
			case 0:
				_ = os.Remove(name)
			case 1:
				_ = os.Remove(name)
				_ = unix.Mkfifo(name, 0o600)
			case 2:
				_ = os.Remove(name)
				_ = os.Symlink("/etc/passwd", name)
			}
		}
	}
	o := j.run()
	if o.kerr != nil || !errors.Is(o.err, source.ErrFailed) || len(o.failed) == 0 {
		t.Fatalf("source: %v, sink: %v, %d failed", o.err, o.kerr, len(o.failed))
	}
	// Files that vanish before they are announced do not count.
	if n := len(tree(t, j.to)); n+len(o.failed) != int(o.Entries) {
		t.Errorf("%d files arrived and %d failed, want %d", n, len(o.failed), o.Entries)
	}
}

// A name that is a directory on one side and something else on the other is not replaced.
func TestOtherTypeAtTarget(t *testing.T) {
	j := newJob(t)
	for _, name := range []string{"file", "dir/inside/deep", "linked/inside", "fine", "link"} {
		write(t, filepath.Join(j.from, name), 10, 1)
	}
	must(t, os.Remove(j.from+"/link"), os.Symlink("x", j.from+"/link"))
	outside := t.TempDir()
	must(t, os.MkdirAll(j.to+"/file/x", 0o755), os.MkdirAll(j.to+"/link/x", 0o755),
		os.WriteFile(j.to+"/dir", nil, 0o644), os.Symlink(outside, j.to+"/linked"))
	j.fails(map[string]string{
		"file": "has a directory of that name", "link": "has a directory of that name",
		"dir": "has a file of that name", "dir/inside": "its directory could not be created",
		"dir/inside/deep": "its directory could not be created",
		"linked":          "symbolic link", "linked/inside": "its directory could not be created",
	})
	sameFile(t, j.from+"/fine", j.to+"/fine")
	if len(tree(t, outside)) > 0 {
		t.Error("a symbolic link at the target was followed")
	}
}

// What an earlier run has left of a file is deleted, if the file is complete now without it.
func TestDeleteLeft(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/small", 100, 1)
	write(t, j.from+"/same", 100, 1)
	write(t, j.from+"/large", 6<<20, 1)
	sizes := map[string]int64{"small": 5 << 20, "same": 5 << 20, "dir": 5 << 20}
	must(t, os.Mkdir(j.from+"/dir", 0o755), os.Mkdir(j.to+"/large", 0o755))
	j.fails(map[string]string{"large": "has a directory of that name"})
	must(t, os.Remove(j.to+"/small"), os.Remove(j.to+"/large"))
	root, err := os.OpenRoot(j.to)
	must(t, err)
	defer root.Close()
	for name, size := range sizes {
		left, _, err := part.Resume(root, name, part.Identity{Size: size}, 1)
		must(t, err)
		left.Keep()
	}
	busy, err := part.Create(root, "large")
	must(t, err)
	must(t, os.Remove(j.from+"/large"))
	write(t, j.from+"/large", 100, 1) // so small that the part is not looked at
	j.sink.Delete = true
	j.ok()
	if list := temporaries(t, j.to); len(list) != 1 {
		t.Errorf("%q are left, want only what is in use", list)
	}
	busy.Discard()
	equal(t, j.from, j.to)
}

// A file that fails keeps what was stored for a later run, also with --delete.
func TestDeleteKeeps(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/large", 30<<20, 1)
	j.source.Limit, j.sink.Delete = 20<<20, true
	j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
		eventually(func() bool { return s.Progress().Sent > 6<<20 })
		_ = os.Mkdir(j.to+"/large", 0o755) // so the complete file cannot get its name
	}
	j.fails(map[string]string{"large": "file exists"})
	if list := temporaries(t, j.to); len(list) != 2 {
		t.Errorf("%q are left, want a file and its journal", list)
	}
}

// smallDisk mounts a file system of the given size.
func smallDisk(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", size))
	if err != nil {
		t.Skipf("mount a small file system: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// With a full disk, files that fit arrive, others fail. When there is space again, the copy goes on
// where it ended.
func TestDiskFull(t *testing.T) {
	j := newJob(t)
	j.to = smallDisk(t, 12<<20)
	write(t, j.to+"/ballast", 5<<20, 1)
	write(t, j.from+"/a", 100_000, 1)
	write(t, j.from+"/large", 10<<20, 2)
	o := j.fails(map[string]string{"large": "no space left on device"})
	if o.Sent > 1<<20 {
		t.Errorf("%d bytes were sent for a file that cannot fit", o.Sent)
	}
	// The disk fills while the file is being sent. It has almost arrived.
	must(t, os.Remove(j.to+"/ballast"))
	j.source.Limit = 20 << 20
	j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
		eventually(func() bool { return s.Progress().Sent > 6<<20 })
		_ = os.WriteFile(j.to+"/ballast", make([]byte, 6<<20), 0o600) // as much as fits
	}
	j.fails(map[string]string{"large": "no space left on device"})
	sameFile(t, j.from+"/a", j.to+"/a")
	if _, err := os.Stat(j.to + "/large"); err == nil {
		t.Error("an incomplete file has appeared")
	}
	j.during, j.source.Limit = nil, 0
	j.fails(map[string]string{"large": "no space left on device"}) // what has arrived stays
	must(t, os.Remove(j.to+"/ballast"))
	o = j.ok()
	if o.sum.Resumed < 4<<20 || o.Sent > 6<<20 {
		t.Errorf("%d bytes were resumed and %d sent", o.sum.Resumed, o.Sent)
	}
	equal(t, j.from, j.to)
}

// After the connection broke, the same copy transfers the rest.
func TestResume(t *testing.T) {
	j := newJob(t)
	const size = 12 << 20
	write(t, j.from+"/large", size, 1)
	write(t, j.from+"/small", 10, 1)
	for i := range 3 {
		sent := int64(i+1) * 3 << 20
		j.during = func(p *filecopytest.Pipe, _ *source.Source, k *sink.Sink) {
			eventually(func() bool { return k.Received() > 3<<20 })
			p.Close(errors.New("the cable was cut"))
		}
		j.source.Limit = 40 << 20
		o := j.run()
		if o.err == nil || o.kerr == nil || !strings.Contains(o.err.Error(), "the cable was cut") {
			t.Fatalf("source: %v, sink: %v", o.err, o.kerr)
		}
		if _, err := os.Stat(j.to + "/large"); err == nil {
			t.Fatalf("an incomplete file has appeared after %d bytes", sent)
		}
	}
	j.during, j.source.Limit = nil, 0
	o := j.ok()
	if o.sum.Resumed < 9<<20 || o.Sent > size-9<<20+10 {
		t.Errorf("%d bytes were resumed and %d sent", o.sum.Resumed, o.Sent)
	}
	equal(t, j.from, j.to)
}

// A file that has changed since the copy was interrupted is sent anew, even if size and time are
// the same.
func TestResumeOfOtherVersion(t *testing.T) {
	j := newJob(t)
	path := j.from + "/large"
	write(t, path, 12<<20, 1)
	j.during = func(p *filecopytest.Pipe, _ *source.Source, k *sink.Sink) {
		eventually(func() bool { return k.Received() > 3<<20 })
		p.Close(nil)
	}
	j.source.Limit = 40 << 20
	j.run()
	if len(temporaries(t, j.to)) == 0 {
		t.Fatal("nothing to resume")
	}
	info, err := os.Stat(path)
	must(t, err)
	write(t, path, 12<<20, 2)
	must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
	j.during, j.source.Limit = nil, 0
	if o := j.ok(); o.sum.Resumed != 0 {
		t.Errorf("%d bytes were resumed", o.sum.Resumed)
	}
	equal(t, j.from, j.to)
}

// Data that changes on its way is detected, per block and per file.
func TestChecksums(t *testing.T) {
	for name, c := range map[string]struct {
		tamper func(b *filecopy.Block) bool
		text   string
	}{
		"bit": {func(b *filecopy.Block) bool {
			if b.Session > 1 && b.Seq == 3 {
				b.Data[100] ^= 1
			}
			return true
		}, "checksum"},
		"offset": {func(b *filecopy.Block) bool {
			if b.Session > 1 && b.Seq == 3 {
				b.Offset += 1 << 20
			}
			return true
		}, ""},
		"lost block": {func(b *filecopy.Block) bool { return b.Session <= 1 || b.Seq != 3 },
			"bytes were sent"},
	} {
		t.Run(name, func(t *testing.T) {
			j := newJob(t)
			write(t, j.from+"/large", 6<<20, 1)
			write(t, j.from+"/other", 10, 1)
			j.pipe.Tamper = c.tamper
			j.fails(map[string]string{"large": c.text})
			sameFile(t, j.from+"/other", j.to+"/other")
			j.pipe.Tamper = nil
			j.ok()
			equal(t, j.from, j.to)
		})
	}
	j := newJob(t)
	write(t, j.from+"/small", 10, 1)
	j.pipe.Tamper = func(b *filecopy.Block) bool {
		b.Data[b.Len-1] ^= 1
		return true
	}
	if o := j.run(); !errors.Is(o.kerr, sink.ErrChecksum) {
		t.Errorf("damaged records: %v, want ErrChecksum", o.kerr)
	}
}

// Two copies into the same directory at the same time never mix their files.
func TestConcurrentCopies(t *testing.T) {
	a, b := newJob(t), newJob(t)
	b.to = a.to
	for _, j := range []*job{a, b} {
		seed := uint64(len(j.from)) // both differ
		if j == b {
			seed = 77
		}
		for i := range 50 {
			write(t, fmt.Sprintf("%s/f%d", j.from, i), 3000+i, seed)
		}
		write(t, j.from+"/large", 6<<20, seed)
	}
	done := make(chan *outcome)
	go func() { done <- a.run() }()
	second := b.run()
	first := <-done
	for _, o := range []*outcome{first, second} {
		if o.kerr != nil || o.err != nil && !errors.Is(o.err, source.ErrFailed) {
			t.Fatalf("source: %v, sink: %v", o.err, o.kerr)
		}
		for path, text := range o.failed {
			if !strings.Contains(text, part.ErrBusy.Error()) { // two small files at the same moment
				t.Errorf("%s: %s, want ErrBusy", path, text)
			}
		}
	}
	x, y, got := tree(t, a.from), tree(t, b.from), tree(t, a.to)
	for name, text := range got {
		if text != x[name] && text != y[name] {
			t.Errorf("%s: %s is neither %s nor %s", name, text, x[name], y[name])
		}
	}
	if len(got) != 51 {
		t.Errorf("%d files, want 51: %v", len(got), temporaries(t, a.to))
	}
}

// A file that another session writes is received when that session has ended.
func TestBusyFile(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/medium", 1<<20, 1)
	write(t, j.from+"/large", 6<<20, 1)
	root, err := os.OpenRoot(j.to)
	must(t, err)
	defer root.Close()
	var other []*part.Part
	for _, name := range []string{"medium", "large"} {
		p, err := part.Create(root, name)
		must(t, err)
		other = append(other, p)
	}
	j.during = func(*filecopytest.Pipe, *source.Source, *sink.Sink) {
		time.Sleep(100 * time.Millisecond)
		for _, p := range other {
			p.Keep()
		}
	}
	j.ok()
	equal(t, j.from, j.to)
}

// The sink limits entries and bytes.
func TestLimits(t *testing.T) {
	j := newJob(t)
	for i := range 20 {
		write(t, fmt.Sprintf("%s/f%02d", j.from, i), 1000, 1)
	}
	j.sink.MaxFiles = 10
	if o := j.run(); !errors.Is(o.kerr, sink.ErrLimit) || o.err == nil {
		t.Errorf("source: %v, sink: %v, want ErrLimit", o.err, o.kerr)
	}
	j = newJob(t)
	write(t, j.from+"/small", 1000, 1)
	write(t, j.from+"/large", 100_000, 1)
	j.sink.MaxBytes = 50_000
	j.fails(map[string]string{"large": "at most 50000 bytes"})
	sameFile(t, j.from+"/small", j.to+"/small")
	// The second stream does not end: its writer waits after what is too much.
	for _, n := range []int{100_000, 60_000} {
		r, w, err := os.Pipe()
		must(t, err)
		go func() {
			_, _ = w.Write(random(n, 1))
			if n == 100_000 {
				_ = w.Close()
			}
		}()
		j.list = []*source.Path{{Stream: r, As: "stdin", Text: "-"}}
		j.fails(map[string]string{"-": "at most 50000 bytes"})
		_, _ = r.Close(), w.Close()
	}
}

// A stopped sink or source does not end the copy.
func TestSlowSides(t *testing.T) {
	j := newJob(t)
	sample(t, j.from)
	j.pipe.Tamper = func(b *filecopy.Block) bool {
		if b.Seq%8 == 0 {
			time.Sleep(5 * time.Millisecond)
		}
		return true
	}
	j.ok()
	equal(t, j.from, j.to)
}

// A source file whose name looks like a temporary file is named and left out, unless the rules
// exclude it. One that the user has named fails.
func TestReservedNames(t *testing.T) {
	const name = ".gorxe-0123456789abcdef.part"
	j := newJob(t)
	write(t, j.from+"/"+name, 10, 1)
	write(t, j.from+"/.gorxe-other", 10, 1)
	if o := j.ok(); o.Entries != 1 || o.Ignored != 1 ||
		o.ignored[name] != "temporary file of gorxe recv" {
		t.Errorf("%d entries, ignored %v, want 1 and the file", o.Entries, o.ignored)
	}
	j.rules = []string{"-*.part"}
	if o := j.ok(); o.Ignored != 0 {
		t.Errorf("ignored %v, want none", o.ignored)
	}
	j.rules, j.paths = nil, []string{name}
	j.fails(map[string]string{name: "the name is reserved"})
}
