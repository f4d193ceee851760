package part

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// An error that passes, like too many open files, does not cost what an earlier run has stored.
func TestResumeLater(t *testing.T) {
	dir, _ := root(t)
	begin(t, dir)
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	// The part gets the last descriptor, so the journal gets none.
	last, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: uint64(last.Fd()) + 1, Max: old.Max}
	_ = last.Close()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	p, _, err := Resume(dir, "f", id, 10)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Errorf("Resume() without descriptors = %v, want EMFILE", err)
	}
	if p != nil {
		p.Keep()
	}
	p, have, err := Resume(dir, "f", id, 10)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Discard()
	if len(have) == 0 {
		t.Error("nothing is left to resume")
	}
}

// A crash between the two steps of Commit leaves the journal of a complete file. If a new part gets
// the same inode later, but no journal, the old one must not count for it.
func TestOldJournal(t *testing.T) {
	dir, path := root(t)
	old := filepath.Join(path, temporary("f", journalSuffix))
	if err := os.WriteFile(old, []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	// The name of a new journal is taken, so it cannot be written.
	if err := os.Mkdir(filepath.Join(path, temporary("f", newSuffix)), 0o700); err != nil {
		t.Fatal(err)
	}
	p, have, err := Resume(dir, "f", id, 10)
	if err != nil || len(have) > 0 || p.journal != nil {
		t.Fatalf("Resume() = %v, %v, want a part without a journal", have, err)
	}
	defer p.Discard()
	if _, err := os.Lstat(old); err == nil {
		t.Error("the part has the journal of another one")
	}
}
