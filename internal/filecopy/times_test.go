package filecopy_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
)

// Times outside of the years 1678 to 2262, which nanoseconds in 64 bits do not reach, are preserved
// like others, if the file system has them.
func TestFarTimes(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "gorxe-times-") // tmpfs has times of 64 bits
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	j := newJob(t)
	j.from, j.to = dir+"/from", dir+"/to"
	want := map[string]string{}
	for _, year := range []int{1600, 1677, 1969, 2263, 2400} {
		below := filepath.Join(j.from, fmt.Sprint(year))
		write(t, below+"/small", 100, 1)
		write(t, below+"/large", 5<<20, 1)
		must(t, os.Symlink("small", below+"/link"), os.Mkdir(below+"/dir", 0o755))
		mtime := time.Date(year, 1, 2, 3, 4, 5, 678, time.UTC)
		for _, name := range []string{"small", "large", "link", "dir"} {
			setFarTime(t, below+"/"+name, mtime)
			want[fmt.Sprint(year, "/", name)] = mtime.String()
		}
	}
	must(t, os.Mkdir(j.to, 0o755))
	j.ok()
	for name, text := range want {
		info, err := os.Lstat(j.to + "/" + name)
		must(t, err)
		if got := info.ModTime().UTC().String(); got != text {
			t.Errorf("%s: %s, want %s", name, got, text)
		}
	}
	if o := j.ok(); o.sum.Stored > 0 {
		t.Errorf("%d files are sent again", o.sum.Stored)
	}
}

// A link with the same target gets the time of the source's, unless files are not to be replaced.
func TestLinkTime(t *testing.T) {
	for _, c := range []struct {
		sink    sink.Config
		changes bool
	}{
		{sink.Config{}, true},
		{sink.Config{DryRun: true}, false},
		{sink.Config{Overwrite: record.Older}, false},
		{sink.Config{Overwrite: record.Never}, false},
	} {
		j := newJob(t)
		must(t, os.Symlink("target", j.from+"/link"))
		j.ok()
		before, after := time.Unix(1e9, 0), time.Unix(1e9+1, 5)
		setFarTime(t, j.to+"/link", before)
		setFarTime(t, j.from+"/link", after)
		j.sink = c.sink
		if o := j.ok(); o.sum.Skipped != 1 {
			t.Errorf("%+v: the summary is %+v, want that the link is unchanged", c.sink, o.sum)
		}
		info, err := os.Lstat(j.to + "/link")
		must(t, err)
		want := before
		if c.changes {
			want = after
		}
		if !info.ModTime().Equal(want) {
			t.Errorf("%+v: the time is %v, want %v", c.sink, info.ModTime(), want)
		}
	}
}

// setFarTime is os.Chtimes for any time.
func setFarTime(t *testing.T, name string, mtime time.Time) {
	t.Helper()
	m, err := unix.TimeToTimespec(mtime)
	must(t, err, unix.UtimesNanoAt(unix.AT_FDCWD, name, []unix.Timespec{m, m},
		unix.AT_SYMLINK_NOFOLLOW))
}
