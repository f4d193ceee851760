package filecopy_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/record"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// sample creates a tree with everything that is preserved.
func sample(t *testing.T, dir string) {
	t.Helper()
	at := func(name string) string { return filepath.Join(dir, name) }
	for i, size := range []int{0, 1, 100, 4096, 16000, 16384, 16385, 64 << 10, 64<<10 + 1, 300_000,
		5 << 20} {
		write(t, at(fmt.Sprintf("sizes/f%d", size)), size, uint64(i))
	}
	for i := range 100 {
		write(t, at(fmt.Sprintf("many/d%d/f%d", i%7, i)), i*5, uint64(i))
	}
	for _, name := range []string{"new\nline", "invalid\xff\xfe", " space ", "-dash",
		"\x01\x1b[31m",
		strings.Repeat("n", 255), "...", "ünïcode"} {
		write(t, at("names/"+name), 10, 1)
	}
	must(t, os.MkdirAll(at("empty/deeper"), 0o750), os.Symlink("../sizes/f1", at("many/link")),
		os.Symlink("/etc/passwd", at("many/absolute")), os.Symlink("nowhere", at("dangling")),
		os.Symlink(strings.Repeat("x", 4000), at("long")))
	write(t, at("modes/private"), 5, 1)
	write(t, at("modes/exec"), 5, 2)
	write(t, at("modes/readonly"), 5, 3)
	must(t, os.Chmod(at("modes/private"), 0o600), os.Chmod(at("modes/exec"), 0o755),
		os.Chmod(at("modes/readonly"), 0o400), os.Chmod(at("modes"), 0o555))
	t.Cleanup(func() { _ = os.Chmod(at("modes"), 0o755) })
	old := time.Date(1999, 12, 31, 23, 59, 59, 123456789, time.UTC)
	for _, name := range []string{"sizes/f100", "empty/deeper", "empty", "modes/exec"} {
		must(t, os.Chtimes(at(name), old, old))
	}
	times := []unix.Timespec{unix.NsecToTimespec(old.UnixNano()),
		unix.NsecToTimespec(old.UnixNano())}
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, at("dangling"), times, unix.AT_SYMLINK_NOFOLLOW))
}

// Names, contents, modes, times, links and empty directories are preserved; blocks may arrive in
// any order. A second copy transfers nothing.
func TestTree(t *testing.T) {
	for _, pipe := range []filecopytest.Options{{}, {Blocks: 2, BlockSize: 32 << 10},
		{Reorder: true, Seed: 1, Blocks: 16}, {Reorder: true, Seed: 2, BlockSize: 1 << 20}} {
		t.Run(fmt.Sprintf("%+v", pipe), func(t *testing.T) {
			j := newJob(t)
			j.pipe = pipe
			sample(t, j.from)
			o := j.ok()
			equal(t, j.from, j.to)
			if o.sum != o.Sink || o.sum.Failed != 0 || o.sum.Stored != uint64(o.Entries) {
				t.Errorf("summaries %+v and %+v of %d entries", o.sum, o.Sink, o.Entries)
			}
			if o = j.ok(); o.Sent != 0 || o.sum.Stored != 0 {
				t.Errorf("the second copy sent %d bytes and stored %d entries", o.Sent,
					o.sum.Stored)
			}
			equal(t, j.from, j.to)
		})
	}
}

// A directory arrives with its name, or only its contents if its name ends with a slash. Several
// sources arrive in the same directory.
func TestSources(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/dir/a", 10, 1)
	write(t, j.from+"/dir/sub/b", 10, 2)
	write(t, j.from+"/other/c", 10, 3)
	write(t, j.from+"/file", 10, 4)
	for _, c := range []struct {
		paths  []string
		target string
		want   string
	}{
		{[]string{"dir"}, "", "dir dir/a dir/sub dir/sub/b"},
		{[]string{"dir/"}, "", "a sub sub/b"},
		{[]string{"dir/."}, "", "a sub sub/b"},
		{[]string{"dir/", "other", "file"}, "", "a file other other/c sub sub/b"},
		{[]string{"dir"}, "new/deep",
			"new new/deep new/deep/dir new/deep/dir/a new/deep/dir/sub new/deep/dir/sub/b"},
		{[]string{"dir/"}, "new", "new new/a new/sub new/sub/b"},
		{[]string{"file"}, "renamed", "renamed"},
		{[]string{"file"}, "new/", "new new/file"},
		{[]string{"file"}, "new/renamed", "new new/renamed"},
		{[]string{"file"}, "../../escaped", "escaped"},
		{[]string{"file", "dir/a"}, "x", "x x/a x/file"},
	} {
		t.Run(strings.Join(c.paths, " ")+" to "+c.target, func(t *testing.T) {
			k := *j
			k.t, k.to = t, t.TempDir()
			k.paths, k.target = c.paths, c.target
			k.ok()
			var got []string
			for name := range tree(t, k.to) {
				got = append(got, name)
			}
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// Files of later sources replace those of the same path of earlier ones, whatever their size.
func TestMerge(t *testing.T) {
	j := newJob(t)
	j.paths = []string{"a/", "b/", "both"}
	sizes := []int{1, 5000, 3 << 20, 6 << 20}
	for i, dir := range j.paths[:2] {
		must(t, os.MkdirAll(filepath.Join(j.from, dir, "sub"), 0o755))
		for k := range 200 {
			write(t, fmt.Sprintf("%s/%s/sub/%d", j.from, dir, k), i+sizes[k%2], uint64(i*1000+k))
		}
		for k, size := range sizes {
			write(t, fmt.Sprintf("%s/%s/size%d", j.from, dir, k), size+i, uint64(i*1000+k))
		}
	}
	write(t, filepath.Join(j.from, "a", "both"), 10, 1)
	write(t, filepath.Join(j.from, "both"), 100, 2)
	for range 2 {
		j.ok()
		sameFile(t, filepath.Join(j.from, "both"), filepath.Join(j.to, "both"))
		must(t, os.Remove(filepath.Join(j.to, "both")))
		equal(t, filepath.Join(j.from, "b"), j.to)
	}
}

// A tree with many small files arrives, and the second copy skips all of them.
func TestManyFiles(t *testing.T) {
	j := newJob(t)
	j.from, j.to = smallDisk(t, 64<<20), smallDisk(t, 64<<20)
	const files = 4000
	data := random(2000, 1)
	for i := range files {
		dir := fmt.Sprintf("%s/d%d", j.from, i/1000)
		if i%1000 == 0 {
			must(t, os.Mkdir(dir, 0o755))
		}
		must(t, os.WriteFile(fmt.Sprintf("%s/%d", dir, i), data[:i%2000], 0o644))
	}
	if o := j.ok(); o.sum.Stored != files+files/1000 {
		t.Errorf("%d entries stored, want %d", o.sum.Stored, files+files/1000)
	}
	equal(t, j.from, j.to)
	if o := j.ok(); o.sum.Stored != 0 || o.sum.Skipped != files+files/1000 {
		t.Errorf("%d entries stored and %d skipped, want 0 and %d", o.sum.Stored, o.sum.Skipped,
			files+files/1000)
	}
}

// A single file keeps its name if the target is a directory.
func TestSingleFileIntoDirectory(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/file", 10, 4)
	must(t, os.Mkdir(j.to+"/d", 0o755))
	j.paths, j.target = []string{"file"}, "d"
	j.ok()
	sameFile(t, j.from+"/file", j.to+"/d/file")
}

// Holes are neither sent nor stored.
func TestSparse(t *testing.T) {
	j := newJob(t)
	for name, data := range map[string][]int64{
		"middle": {0, 6 << 20}, "end": {0}, "begin": {9 << 20}, "none": nil,
	} {
		f, err := os.Create(filepath.Join(j.from, name))
		if err != nil {
			t.Fatal(err)
		}
		must(t, f.Truncate(10<<20))
		for _, at := range data {
			if _, err := f.WriteAt(random(200_000, uint64(at)), at); err != nil {
				t.Fatal(err)
			}
		}
		must(t, f.Close())
	}
	if allocated(t, j.from+"/middle") > 2<<20 {
		t.Skip("no holes on this file system")
	}
	o := j.ok()
	equal(t, j.from, j.to)
	if o.Sent > 2<<20 {
		t.Errorf("%d bytes were sent, want the data without holes", o.Sent)
	}
	for _, name := range []string{"middle", "end", "begin", "none"} {
		if n := allocated(t, filepath.Join(j.to, name)); n > 2<<20 {
			t.Errorf("%s uses %d bytes on disk", name, n)
		}
	}
}

// Paths may be longer than the kernel's limit of 4095 bytes.
func TestLongPaths(t *testing.T) {
	j := newJob(t)
	name := strings.Repeat("d", 200)
	root, err := os.OpenRoot(j.from)
	if err != nil {
		t.Fatal(err)
	}
	for range 30 {
		must(t, root.Mkdir(name, 0o755))
		below, err := root.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		must(t, root.Close())
		root = below
		must(t, root.WriteFile("file", []byte("deep"), 0o644))
	}
	must(t, root.Close())
	o := j.ok()
	if o.sum.Stored != 60 {
		t.Errorf("%d entries were stored, want 60", o.sum.Stored)
	}
	if root, err = os.OpenRoot(j.to); err != nil {
		t.Fatal(err)
	}
	for range 30 {
		below, err := root.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		must(t, root.Close())
		root = below
	}
	if text, err := root.ReadFile("file"); err != nil || string(text) != "deep" {
		t.Errorf("%q, %v", text, err)
	}
	must(t, root.Close())
}

// Many directories below each other, and one in another.
func TestDeepTree(t *testing.T) {
	j := newJob(t)
	path := j.from
	for range 300 {
		path += "/d"
	}
	must(t, os.MkdirAll(path, 0o755))
	write(t, path+"/f", 10, 1)
	for i := range 50 {
		must(t, os.Mkdir(fmt.Sprintf("%s/s%d", path, i), 0o755))
	}
	j.ok()
	equal(t, j.from, j.to)
}

func TestRules(t *testing.T) {
	j := newJob(t)
	for _, name := range []string{"a.c", "a.o", "build/x", "src/b.c", "src/b.o", "src/build/y",
		"keep/a.o"} {
		write(t, filepath.Join(j.from, name), 10, 1)
	}
	j.rules = []string{"+/keep/*.o", "-*.o", "-/build/"}
	j.ok()
	var got []string
	for name := range tree(t, j.to) {
		got = append(got, name)
	}
	slices.Sort(got)
	if want := "a.c keep keep/a.o src src/b.c src/build src/build/y"; strings.Join(got,
		" ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestOverwrite(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	for _, c := range []struct {
		mode record.Overwrite
		want string // which of the files are replaced
	}{{record.Always, "older newer size"}, {record.Older, "older"}, {record.Never, ""}} {
		t.Run(c.mode.String(), func(t *testing.T) {
			j := newJob(t)
			for name, age := range map[string]time.Duration{"older": -time.Hour, "newer": time.Hour,
				"same": 0, "size": 0} {
				write(t, filepath.Join(j.from, name), 10, 1)
				write(t, filepath.Join(j.to, name), 10, 2)
				if name == "size" {
					write(t, filepath.Join(j.to, name), 11, 2)
				}
				must(t, os.Chtimes(filepath.Join(j.from, name), now, now),
					os.Chtimes(filepath.Join(j.to, name), now.Add(age), now.Add(age)))
			}
			write(t, j.from+"/new", 10, 1)
			must(t, os.Mkdir(j.from+"/dir", 0o700), os.Mkdir(j.to+"/dir", 0o755))
			j.sink.Overwrite = c.mode
			j.ok()
			dir, err := os.Stat(j.to + "/dir")
			must(t, err)
			if kept := dir.Mode().Perm() == 0o755; kept != (c.mode == record.Never) {
				t.Errorf("the mode of the existing directory is %v", dir.Mode())
			}
			sameFile(t, j.from+"/new", j.to+"/new")
			for _, name := range []string{"older", "newer", "same", "size"} {
				data, err := os.ReadFile(filepath.Join(j.to, name))
				if err != nil {
					t.Fatal(err)
				}
				replaced := string(data) == string(random(10, 1))
				if want := slices.Contains(strings.Fields(c.want), name); replaced != want {
					t.Errorf("%s: replaced %v, want %v", name, replaced, want)
				}
			}
		})
	}
}

// Directories keep setgid, which new ones inherit: their files belong to a shared group.
func TestSetgidDirectory(t *testing.T) {
	j := newJob(t)
	must(t, os.MkdirAll(j.from+"/old/new", 0o700), os.Chmod(j.from+"/old", 0o700),
		os.Mkdir(j.to+"/old", 0o755), os.Chmod(j.to+"/old", 0o500|os.ModeSetgid))
	j.ok()
	for _, name := range []string{"/old", "/old/new"} {
		info, err := os.Stat(j.to + name)
		must(t, err)
		if want := 0o700 | fs.ModeDir | fs.ModeSetgid; info.Mode() != want {
			t.Errorf("the mode of %s is %v, want %v", name, info.Mode(), want)
		}
	}
}

// What the source does not have is deleted, except what the rules exclude.
func TestDelete(t *testing.T) {
	for _, dry := range []bool{true, false} {
		j := newJob(t)
		write(t, j.from+"/a/keep", 10, 1)
		must(t, os.Mkdir(j.from+"/empty", 0o755))
		for _, name := range []string{"a/keep", "a/gone", "a/gone.o", "old/x/y", "old/z", "empty/e",
			"mixed/f.o", "mixed/g", "a/mixed/f.o", "a/mixed/g", "a/mixed/old/f", "top"} {
			write(t, filepath.Join(j.to, name), 10, 2)
		}
		long := time.Unix(1e9, 0)
		must(t, os.Chtimes(j.to+"/a/keep", long, long))
		outside := t.TempDir()
		write(t, outside+"/file", 10, 3)
		must(t, os.Symlink(outside, j.to+"/link"))
		j.rules = []string{"-*.o"}
		j.sink.Delete, j.sink.DryRun = true, dry
		before := tree(t, j.to)
		o := j.ok()
		// mixed and a/mixed remain, because of f.o. Below old and a/mixed/old, four names are
		// deleted that are not listed.
		want := "a/gone a/mixed/g a/mixed/old empty/e link mixed/g old top"
		for who, list := range map[string][]string{"source": o.deleted, "sink": o.kdeleted} {
			slices.Sort(list)
			if got := strings.Join(list, " "); got != want || o.sum.Deleted != 8+4 {
				t.Errorf("dry run %v: %s: deleted %q and %d names, want 12", dry, who, got,
					o.sum.Deleted)
			}
		}
		if _, err := os.Stat(outside + "/file"); err != nil {
			t.Error("a symbolic link was followed")
		}
		if dry {
			if after := tree(t, j.to); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("a dry run changed the target from %v to %v", before, after)
			}
			if len(o.listed) != 1 || o.listed[0] != "a/keep" {
				t.Errorf("listed %q, want a/keep", o.listed)
			}
			continue
		}
		var got []string
		for name := range tree(t, j.to) {
			got = append(got, name)
		}
		slices.Sort(got)
		if want := "a a/gone.o a/keep a/mixed a/mixed/f.o empty mixed mixed/f.o"; strings.Join(got, " ") != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Only directories that were sent lose files, and none if a part of the source could not be read.
func TestDeleteOnlyWhatIsKnown(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/dir/a", 10, 1)
	write(t, j.from+"/file", 10, 1)
	write(t, j.to+"/dir/b", 10, 2)
	write(t, j.to+"/other", 10, 2)
	j.paths = []string{"dir", "file"}
	j.sink.Delete = true
	j.ok()
	if _, err := os.Stat(j.to + "/other"); err != nil {
		t.Error("a file was deleted whose directory was not sent")
	}
	if _, err := os.Stat(j.to + "/dir/b"); err == nil {
		t.Error("dir/b was not deleted")
	}
}

// A dry run reports the same names as the transfer and changes nothing.
func TestDryRun(t *testing.T) {
	j := newJob(t)
	sample(t, j.from)
	write(t, j.to+"/sizes/f1", 1, 1) // has the same size, but another time
	before := tree(t, j.to)
	j.sink.DryRun = true
	j.target = "new/target"
	o := j.ok()
	if int64(len(o.listed)) != o.Entries || o.Sent != 0 {
		t.Errorf("%d of %d entries are listed, %d bytes were sent", len(o.listed), o.Entries,
			o.Sent)
	}
	if after := tree(t, j.to); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the target was changed from %v to %v", before, after)
	}
}

// A stream has an unknown size, and the name that the target gives.
func TestStream(t *testing.T) {
	for _, size := range []int{0, 10, 64 << 10, 1_000_000} {
		j := newJob(t)
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		data := random(size, 7)
		go func() {
			w.Write(data)
			w.Close()
		}()
		j.list = []*source.Path{{Stream: r, As: "stdin", Text: "-"}}
		j.target = "sub/out"
		o := j.ok()
		got, err := os.ReadFile(j.to + "/sub/out")
		if err != nil || string(got) != string(data) || o.sum.Bytes != uint64(size) {
			t.Errorf("%d bytes, %v, want %d; summary %+v", len(got), err, size, o.sum)
		}
		r.Close()
	}
}

// Special files are named and left out.
func TestSpecialFiles(t *testing.T) {
	j := newJob(t)
	must(t, unix.Mkfifo(j.from+"/fifo", 0o600))
	write(t, j.from+"/file", 10, 1)
	o := j.ok()
	if o.ignored["fifo"] != "FIFO" || o.Ignored != 1 {
		t.Errorf("ignored %v", o.ignored)
	}
	sameFile(t, j.from+"/file", j.to+"/file")
}

// The rate is limited.
func TestLimit(t *testing.T) {
	j := newJob(t)
	write(t, j.from+"/large", 400_000, 1)
	for i := range 20 {
		write(t, fmt.Sprintf("%s/s%d", j.from, i), 5000, 1)
	}
	j.source.Limit = 1_000_000
	begin := time.Now()
	j.ok()
	if d := time.Since(begin); d < 300*time.Millisecond {
		t.Errorf("500 kB at 1 MB/s took %v", d)
	}
}

// Direct I/O copies everything, also sizes that are no multiple of the alignment.
func TestDirect(t *testing.T) {
	j := newJob(t)
	j.source.Direct, j.sink.Direct = true, true
	for _, size := range []int{200_000, 4096 * 60, 1 << 20, 1<<20 + 1} {
		write(t, fmt.Sprintf("%s/f%d", j.from, size), size, uint64(size))
	}
	j.ok()
	equal(t, j.from, j.to)
}
