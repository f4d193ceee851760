package filecopy_test

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"time"

	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// A target directory that is created in place of that of the source gets its permissions and its
// time. Meanwhile it has no more permissions for others.
func TestNewTarget(t *testing.T) {
	if byNobody(t) {
		return
	}
	past := time.Unix(1e9, 12345)
	for _, perm := range []fs.FileMode{0o700, 0o555, 0o500, 0o751, 0o777} {
		j := newJob(t)
		write(t, j.from+"/f", 100_000, 1)
		must(t, os.Chtimes(j.from, past, past), os.Chmod(j.from, perm))
		t.Cleanup(func() { _ = errors.Join(os.Chmod(j.from, 0o700), os.Chmod(j.to+"/a/new", 0o700)) })
		j.target, j.source.Limit = "a/new", 1_000_000
		j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
			eventually(func() bool { return s.Progress().Sent > 0 })
			if info, err := os.Stat(j.to + "/a/new"); err != nil || info.Mode()&^perm&0o077 != 0 {
				t.Errorf("during the copy of a directory with mode %v: %v, %v", perm, info, err)
			}
		}
		j.ok()
		info, err := os.Stat(j.to + "/a/new")
		must(t, err)
		if info.Mode().Perm() != perm || !info.ModTime().Equal(past) {
			t.Errorf("the target has mode %v and time %v, want %v and %v", info.Mode().Perm(),
				info.ModTime(), perm, past)
		}
		if info, err := os.Stat(j.to + "/a"); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("the directory above has mode %v, %v", info.Mode(), err)
		}
	}
}

// A target directory keeps its permissions and its time if it existed before, or if it does not
// stand for that of one source.
func TestOtherTarget(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/a/f", 10, 1)
	write(t, j.from+"/b/g", 10, 1)
	must(t, os.Chmod(j.from+"/a", 0o700), os.Mkdir(j.to+"/old", 0o755))
	for target, paths := range map[string][]string{"old": {"a/"}, "two": {"a/", "b/"},
		"inside": {"a"}} {
		j.target, j.paths = target, paths
		j.ok()
		info, err := os.Stat(j.to + "/" + target)
		must(t, err)
		if info.Mode().Perm() != 0o755 || time.Since(info.ModTime()) > time.Hour {
			t.Errorf("%s has mode %v and time %v, want 0755 and now", target, info.Mode().Perm(),
				info.ModTime())
		}
	}
}
