package part

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/extent"
	"github.com/gorxe/gorxe/internal/safefile"
)

func root(t *testing.T) (*os.Root, string) {
	t.Helper()
	path := t.TempDir()
	dir, err := os.OpenRoot(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = dir.Close() })
	return dir, path
}

var id = Identity{Size: 100, Mtime: time.Unix(1700000000, 5), Version: 42}

// content is the file that the tests transfer.
var content = func() []byte {
	b := make([]byte, id.Size)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}()

func write(t *testing.T, p *Part, offset, end int64) {
	t.Helper()
	data := content[offset:end]
	if err := p.WriteAt(data, extent.Extent{Offset: offset, Length: end - offset,
		CRC: extent.Sum(data)}); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, path string) (list []string) {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// committed checks that a directory has the file f only, with the content, mode 0751 and time
// id.Mtime.
func committed(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(path, "f"))
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(path, "f"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, content) || info.Mode() != 0o751 || !info.ModTime().Equal(id.Mtime) {
		t.Errorf("after Commit: %q, %v, %v", text, info.Mode(), info.ModTime())
	}
	if list := names(t, path); len(list) != 1 {
		t.Errorf("names %q, want only the file", list)
	}
}

// A file has its name, permissions and time when it is complete, and not before.
func TestCommit(t *testing.T) {
	dir, path := root(t)
	for _, old := range []string{"", "old contents"} {
		if old != "" {
			if err := os.WriteFile(filepath.Join(path, "f"), []byte(old), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		p, err := Create(dir, "f")
		if err != nil {
			t.Fatal(err)
		}
		write(t, p, 0, 100)
		if text, err := os.ReadFile(filepath.Join(path, "f")); string(text) != old {
			t.Errorf("before Commit: %q, %v, want %q", text, err, old)
		}
		if err := errors.Join(p.Attributes(0o751, id.Mtime), p.Sync(),
			p.Commit(false)); err != nil {
			t.Fatal(err)
		}
		committed(t, path)
	}
	p, err := Create(dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(true); !errors.Is(err, ErrExists) {
		t.Errorf("Commit(keep) = %v, want ErrExists", err)
	}
	p.Discard()
	if p, err = Create(dir, "g"); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(true); err != nil {
		t.Error(err)
	}
	if list := names(t, path); len(list) != 2 {
		t.Errorf("names %q, want f and g", list)
	}
	if err := os.Mkdir(filepath.Join(path, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if p, err = Create(dir, "d"); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(false); err == nil {
		t.Error("a directory was replaced")
	}
	p.Discard()
}

// asAfterCrash makes the package believe that the kernel was restarted.
func asAfterCrash(t *testing.T) {
	t.Helper()
	old := bootID
	bootID = func() [16]byte { return [16]byte{1, 2, 3} }
	t.Cleanup(func() { bootID = old })
}

func total(list []extent.Extent) (n int64) {
	for _, e := range list {
		n += e.Length
	}
	return n
}

// begin writes two ranges, of which the first is on disk, as a process that is then killed.
func begin(t *testing.T, dir *os.Root) {
	t.Helper()
	p, have, err := Resume(dir, "f", id, 10)
	if err != nil || len(have) != 0 {
		t.Fatalf("Resume() = %v, %v", have, err)
	}
	if err := p.Truncate(id.Size); err != nil {
		t.Fatal(err)
	}
	write(t, p, 0, 10)
	write(t, p, 10, 30)
	if err := p.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	write(t, p, 60, 80)
	_ = p.f.Close() // releases the lock, as the end of the process does
}

// After the process was killed, everything that was written is there. After the host has crashed,
// what was on disk is there.
func TestResume(t *testing.T) {
	for _, crash := range []bool{false, true} {
		dir, path := root(t)
		begin(t, dir)
		want := []extent.Extent{{Offset: 0, Length: 30, CRC: extent.Sum(content[:30])},
			{Offset: 60, Length: 20, CRC: extent.Sum(content[60:80])}}
		t.Run(map[bool]string{true: "crash", false: "kill"}[crash], func(t *testing.T) {
			if crash {
				asAfterCrash(t)
				want = want[:1]
			}
			for range 2 { // killed again without progress
				p, have, err := Resume(dir, "f", id, 10)
				if err != nil || len(have) != len(want) {
					t.Fatalf("Resume() = %v, %v, want %v", have, err, want)
				}
				for i := range want {
					if have[i] != want[i] {
						t.Errorf("range %v, want %v", have[i], want[i])
					}
				}
				_ = p.f.Close()
			}
			p, _, err := Resume(dir, "f", id, 10)
			if err != nil {
				t.Fatal(err)
			}
			write(t, p, 30, 60)
			if crash {
				write(t, p, 60, 80)
			}
			p.Keep()
			if p, _, err = Resume(dir, "f", id, 10); err != nil {
				t.Fatal(err)
			}
			write(t, p, 80, 100)
			if err := p.Commit(false); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(filepath.Join(path, "f"))
			if err != nil || !bytes.Equal(text, content) {
				t.Errorf("%q, %v", text, err)
			}
			if list := names(t, path); len(list) != 1 {
				t.Errorf("names %q, want only the file", list)
			}
		})
	}
}

// A range that was lost in a crash does not become valid by a later checkpoint.
func TestLostRangesStayLost(t *testing.T) {
	dir, _ := root(t)
	begin(t, dir)
	asAfterCrash(t)
	p, _, err := Resume(dir, "f", id, 10)
	if err != nil {
		t.Fatal(err)
	}
	write(t, p, 90, 100)
	if err := p.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	p.Keep()
	if _, have, err := Resume(dir, "f", id, 10); err != nil || total(have) != 40 {
		t.Errorf("Resume() = %v, %v, want 40 bytes", have, err)
	}
}

// Ranges that the caller does not want are written again, and the journal stays valid.
func TestResumeLimit(t *testing.T) {
	dir, path := root(t)
	begin(t, dir)
	p, have, err := Resume(dir, "f", id, 1)
	if err != nil || total(have) != 30 {
		t.Fatalf("Resume() = %v, %v, want one range of 30 bytes", have, err)
	}
	write(t, p, 30, 100)
	p.Keep()
	if p, have, err = Resume(dir, "f", id, 1); err != nil || total(have) != 100 {
		t.Fatalf("Resume() = %v, %v, want the whole file", have, err)
	}
	if err := p.Commit(false); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(filepath.Join(path, "f")); err != nil ||
		!bytes.Equal(text, content) {
		t.Errorf("%q, %v", text, err)
	}
}

// Another version of the file, another temporary file, and a journal with errors begin anew, or use
// what is valid.
func TestInvalidJournal(t *testing.T) {
	journal := temporary("f", journalSuffix)
	for name, c := range map[string]struct {
		change func(t *testing.T, path string)
		id     Identity
		want   int64
	}{
		"other size":    {nil, Identity{Size: 101, Mtime: id.Mtime, Version: id.Version}, 0},
		"other time":    {nil, Identity{Size: 100, Mtime: id.Mtime.Add(1), Version: 42}, 0},
		"other version": {nil, Identity{Size: 100, Mtime: id.Mtime, Version: 43}, 0},
		"nothing":       {func(*testing.T, string) {}, id, 50},
		"no journal":    {func(t *testing.T, p string) { remove(t, p, journal) }, id, 0},
		"empty journal": {func(t *testing.T, p string) { truncate(t, p, journal, 0) }, id, 0},
		"torn record":   {func(t *testing.T, p string) { truncate(t, p, journal, -5) }, id, 30},
		"flipped bit": {func(t *testing.T, p string) { flip(t, p, journal, headerSize+40) }, id,
			0},
		"flipped header": {func(t *testing.T, p string) { flip(t, p, journal, 9) }, id, 0},
		"short part": {func(t *testing.T, p string) {
			truncate(t, p, temporary("f", partSuffix), 70)
		}, id, 0},
		"replaced part": {func(t *testing.T, p string) {
			// Both exist at a time, so they have different inodes.
			other := filepath.Join(p, "other")
			if err := errors.Join(os.WriteFile(other, content, 0o600),
				os.Rename(other, filepath.Join(p, temporary("f", partSuffix)))); err != nil {
				t.Fatal(err)
			}
		}, id, 0},
		"link as journal": {func(t *testing.T, p string) {
			remove(t, p, journal)
			if err := os.Symlink("x", filepath.Join(p, journal)); err != nil {
				t.Fatal(err)
			}
		}, id, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := root(t)
			begin(t, dir)
			if c.change != nil {
				c.change(t, path)
			}
			p, have, err := Resume(dir, "f", c.id, 10)
			if err != nil || total(have) != c.want {
				t.Fatalf("Resume() = %v, %v, want %d bytes", have, err, c.want)
			}
			p.Discard()
			for _, n := range names(t, path) {
				if _, ok := Temporary(n); ok {
					t.Errorf("%s was left", n)
				}
			}
		})
	}
}

func remove(t *testing.T, path, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(path, name)); err != nil {
		t.Fatal(err)
	}
}

func truncate(t *testing.T, path, name string, size int64) {
	t.Helper()
	name = filepath.Join(path, name)
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if size < 0 {
		size += info.Size()
	}
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
}

func flip(t *testing.T, path, name string, at int) {
	t.Helper()
	name = filepath.Join(path, name)
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	data[at] ^= 1
	if err := os.WriteFile(name, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Two sessions cannot write the same file at the same time.
func TestBusy(t *testing.T) {
	dir, _ := root(t)
	p, _, err := Resume(dir, "f", id, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, "f"); !errors.Is(err, ErrBusy) {
		t.Errorf("Create() = %v, want ErrBusy", err)
	}
	if _, _, err := Resume(dir, "f", id, 10); !errors.Is(err, ErrBusy) {
		t.Errorf("Resume() = %v, want ErrBusy", err)
	}
	p.Keep()
	q, err := Create(dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	q.Discard()
}

// What another user has planted under the temporary name is removed, not followed.
func TestPlanted(t *testing.T) {
	for name, plant := range map[string]func(victim, name string) error{
		"symbolic link": os.Symlink,
		"hard link":     os.Link,
		"FIFO":          func(_, name string) error { return unix.Mkfifo(name, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir, path := root(t)
			victim := filepath.Join(t.TempDir(), "victim")
			if err := os.WriteFile(victim, []byte("not yours"), 0o600); err != nil {
				t.Fatal(err)
			}
			for _, suffix := range []string{partSuffix, journalSuffix, newSuffix} {
				if err := plant(victim, filepath.Join(path, temporary("f", suffix))); err != nil {
					t.Fatal(err)
				}
			}
			p, have, err := Resume(dir, "f", id, 10)
			if err != nil || len(have) != 0 {
				t.Fatalf("Resume() = %v, %v", have, err)
			}
			write(t, p, 0, 100)
			if err := p.Commit(false); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(victim); err != nil || string(text) != "not yours" {
				t.Errorf("the victim contains %q, %v", text, err)
			}
			if list := names(t, path); len(list) != 1 {
				t.Errorf("names %q, want only the file", list)
			}
		})
	}
	dir, path := root(t)
	if err := os.Mkdir(filepath.Join(path, temporary("f", partSuffix)), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(dir, "f"); !errors.Is(err, safefile.ErrUnsafe) {
		t.Errorf("Create() = %v, want ErrUnsafe", err)
	}
}

func TestTemporary(t *testing.T) {
	for _, suffix := range []string{partSuffix, journalSuffix, newSuffix} {
		name := temporary("some name\n", suffix)
		if id, ok := Temporary(name); !ok || id != ID("some name\n") {
			t.Errorf("Temporary(%q) = %x, %v", name, id, ok)
		}
	}
	for _, name := range []string{"", "f", ".gorxe-", ".gorxe-0123456789abcdef",
		".gorxe-0123456789abcdeg.part", ".gorxe-0123456789abcdef.parts", ".gorxe-01.part"} {
		if _, ok := Temporary(name); ok {
			t.Errorf("Temporary(%q) = true", name)
		}
	}
}

// A block whose goroutine finds that another one has given up direct I/O is written all the same.
func TestDirectClosed(t *testing.T) {
	dir, path := root(t)
	p, err := Create(dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.UseDirect(); err != nil {
		t.Skip(err)
	}
	_ = p.direct.Load().Close()
	block := bytes.Repeat([]byte{7}, directAlign)
	err = errors.Join(p.WriteAt(block, extent.Extent{}), p.Sync(), p.Commit(false))
	if got, e := os.ReadFile(filepath.Join(path, "f")); err != nil || !bytes.Equal(got, block) {
		t.Errorf("WriteAt() = %v; %d bytes, %v", err, len(got), e)
	}
}

// Blocks that are aligned are written past the page cache, the tail is not.
func TestDirect(t *testing.T) {
	dir, path := root(t)
	p, err := Create(dir, "f")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.UseDirect(); err != nil {
		t.Skip(err)
	}
	data := make([]byte, 3*directAlign)
	at := 0
	for at = 0; !aligned(data[at:]); at++ {
	}
	block := data[at : at+directAlign]
	for i := range block {
		block[i] = byte(i)
	}
	if err := errors.Join(p.WriteAt(block, extent.Extent{Offset: directAlign}),
		p.WriteAt(block[:100], extent.Extent{Offset: 2 * directAlign}),
		p.WriteAt(data[at+1:at+1+directAlign], extent.Extent{})); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Sync(), p.Commit(false)); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(path, "f"))
	if err != nil || !bytes.Equal(got[directAlign:2*directAlign], block) ||
		!bytes.Equal(got[2*directAlign:], block[:100]) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := dir.Stat(temporary("f", partSuffix)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the temporary file remains: %v", err)
	}
}

// Until Commit, the owner can open a temporary file whatever permissions the file will have.
func TestAttributesLate(t *testing.T) {
	for _, perm := range []fs.FileMode{0, 0o444} {
		dir, path := root(t)
		for range 2 { // the second run resumes
			p, _, err := Resume(dir, "f", id, 10)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Attributes(perm, id.Mtime); err != nil {
				t.Fatal(err)
			}
			if st, err := dir.Stat(p.temp); err != nil || st.Mode() != createPerm {
				t.Errorf("before Commit: %v, %v", st.Mode(), err)
			}
			p.Keep()
		}
		p, _, err := Resume(dir, "f", id, 10)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Attributes(perm, id.Mtime), p.Commit(false)); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(filepath.Join(path, "f"))
		if err != nil || st.Mode() != perm || !st.ModTime().Equal(id.Mtime) {
			t.Errorf("after Commit: %v, %v, %v; want %v", st.Mode(), st.ModTime(), err, perm)
		}
	}
}
