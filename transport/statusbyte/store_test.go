package statusbyte

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func put(t *testing.T, s *Store, device uint8, texts ...string) {
	t.Helper()
	for _, text := range texts {
		if err := s.Put(device, []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Sync(); err != nil {
		t.Fatal(err)
	}
}

// files returns a device's files as a consumer sees them.
func files(t *testing.T, dir string) (texts []string) {
	t.Helper()
	list, err := filepath.Glob(filepath.Join(dir, "*"+StoreSuffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Each device has its own directory, each packet is a file, and a later run continues after an
// earlier one.
func TestStore(t *testing.T) {
	root := filepath.Join(t.TempDir(), "data")
	for _, run := range []string{"first", "second"} {
		s, err := OpenStore(root, 0)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, 3, run+" a", run+" b")
		put(t, s, 200, run+" c")
		if err := errors.Join(s.End(3), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if got := files(t, filepath.Join(root, "device-003")); !equal(got,
		[]string{"first a", "first b", "second a", "second b"}) {
		t.Errorf("%q", got)
	}
	if got := files(t, filepath.Join(root, "device-200")); !equal(got,
		[]string{"first c", "second c"}) {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(filepath.Join(root, "device-003", EndMark)); err != nil {
		t.Error(err)
	}
}

// With segments a file appears only when it is complete.
func TestStoreSegments(t *testing.T) {
	root := t.TempDir()
	s, err := OpenStore(root, 10)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "12345", "678")
	if got := files(t, s.Dir(0)); got != nil {
		t.Errorf("too early: %q", got)
	}
	put(t, s, 0, "9abc", "d")
	if got := files(t, s.Dir(0)); !equal(got, []string{"123456789abc"}) {
		t.Errorf("%q", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := files(t, s.Dir(0)); !equal(got, []string{"123456789abc", "d"}) {
		t.Errorf("%q", got)
	}
}

// A root that is not writable is reported at once, a device's directory with its first packet.
// Other devices continue.
func TestStoreUnwritable(t *testing.T) {
	root := t.TempDir()
	file := filepath.Join(root, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(filepath.Join(file, "data"), 0); !errors.Is(err, ErrStore) {
		t.Errorf("%v", err)
	}
	if _, err := OpenStore(root, -1); !errors.Is(err, ErrConfig) {
		t.Errorf("%v", err)
	}
	s, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	// A file in place of the directory.
	if err := os.WriteFile(s.Dir(1), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(1, []byte("x")); !errors.Is(err, ErrStore) {
		t.Errorf("%v", err)
	}
	put(t, s, 2, "y")
	if err := os.Remove(s.Dir(1)); err != nil {
		t.Fatal(err)
	}
	put(t, s, 1, "x") // the same packet again
	if got := files(t, s.Dir(1)); !equal(got, []string{"x"}) {
		t.Errorf("%q", got)
	}
}

// Two receivers cannot share a root: their files would have the same names and replace each other.
func TestStoreRootIsExclusive(t *testing.T) {
	root := t.TempDir()
	first, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := OpenStore(root, 0); !errors.Is(err, ErrStore) ||
		!strings.Contains(err.Error(), "another receiver") {
		t.Errorf("%v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}

// A receiver that is killed loses no packet that it took and shows none that it took partly.
func TestStoreAfterCrash(t *testing.T) {
	root := t.TempDir()
	s, err := OpenStore(root, 100)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "taken ", "too")
	// Killed here: no Close.
	if err := errors.Join(s.devices[0].part.write([]byte(" half")), s.lock.Close()); err != nil {
		t.Fatal(err)
	}
	if s, err = OpenStore(root, 0); err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "next")
	if got := files(t, s.Dir(0)); !equal(got, []string{"taken too", "next"}) {
		t.Errorf("%q", got)
	}
	if list, err := os.ReadDir(s.Dir(0)); err != nil || len(list) != 2 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// OpenStore creates its directory, but not the parent: a mistyped path is an error.
func TestStoreNeedsParent(t *testing.T) {
	root := filepath.Join(t.TempDir(), "parent", "data")
	_, err := OpenStore(root, 0)
	if !errors.Is(err, ErrStore) || !strings.Contains(err.Error(), "create "+filepath.Dir(root)) {
		t.Errorf("OpenStore() without a parent = %v, want ErrStore with advice", err)
	}
	if _, err := os.Stat(filepath.Dir(root)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenStore() created the parent: %v", err)
	}
	if err := os.Mkdir(filepath.Dir(root), 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 { // creates the directory, and uses an existing one
		s, err := OpenStore(root, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A device's directory that disappears is created again with what was not published yet. Without
// the root, which may be an unmounted volume, nothing is stored.
func TestStoreRemovedDirectory(t *testing.T) {
	for _, segment := range []int64{0, 6, 100} {
		root := filepath.Join(t.TempDir(), "data")
		s, err := OpenStore(root, segment)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, 0, "abc")
		if err := os.RemoveAll(s.Dir(0)); err != nil {
			t.Fatal(err)
		}
		put(t, s, 0, "def", "ghi")
		if err := os.RemoveAll(s.Dir(0)); segment == 100 && err != nil {
			t.Fatal(err)
		}
		if segment != 100 {
			put(t, s, 0, "jkl")
		}
		if err := s.End(0); err != nil {
			t.Fatal(err)
		}
		want := map[int64][]string{0: {"jkl"}, 6: {"ghijkl"}, 100: {"abcdefghi"}}[segment]
		if got := files(t, s.Dir(0)); !equal(got, want) {
			t.Errorf("segments of %d: %q, want %q", segment, got, want)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Fatal(err)
		}
		if err := s.Put(0, []byte("x")); !errors.Is(err, ErrStore) {
			t.Errorf("%v", err)
		}
	}
}

// fullAt is the limit of limited. Files that the Go test runner writes stay below it.
const fullAt = 1 << 20

// limited makes files longer than fullAt impossible while f runs: a write across the limit stops in
// the middle, as on a full volume.
func limited(t *testing.T, f func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: fullAt, Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &old); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// If a directory becomes full in the middle of a packet, nothing of the packet is visible: not as a
// file, not after later data, and not twice when the packet is stored after all.
func TestStoreFull(t *testing.T) {
	for _, segment := range []int64{0, fullAt} {
		s, err := OpenStore(t.TempDir(), segment)
		if err != nil {
			t.Fatal(err)
		}
		short, long := strings.Repeat("s", fullAt-10), strings.Repeat("l", fullAt+10)
		limited(t, func() {
			for device := range uint8(3) {
				data := long
				if device == 2 {
					put(t, s, device, short)
					if segment > 0 {
						data = "more than ten bytes"
					}
				}
				if err := s.Put(device, []byte(data)); !errors.Is(err, ErrStore) {
					t.Errorf("device %d: Put() = %v, want ErrStore", device, err)
				}
			}
		})
		put(t, s, 1, "next")
		put(t, s, 2, long)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		want := [][]string{nil, {"next"}, {short, long}}
		if segment > 0 {
			want[2] = []string{short + long}
		}
		for device, want := range want {
			if got := files(t, s.Dir(uint8(device))); !equal(got, want) {
				t.Errorf("segments of %d, device %d: %d files, want %d with the packets stored",
					segment, device, len(got), len(want))
			}
		}
		if left, err := os.ReadDir(s.Dir(0)); err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
}

// A device that starts again after its end is not at its end.
func TestStoreAfterEnd(t *testing.T) {
	s, err := OpenStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "a")
	if err := s.End(0); err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "b")
	if _, err := os.Stat(filepath.Join(s.Dir(0), EndMark)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the mark is still there: %v", err)
	}
}

// A missing number marks missing packets: once, even after failures in between, and also at the
// end.
func TestStoreGap(t *testing.T) {
	root := t.TempDir()
	s, err := OpenStore(root, 10)
	if err != nil {
		t.Fatal(err)
	}
	s.Gap(1) // before a directory exists
	s.Gap(1)
	put(t, s, 1, "1234", "5678")
	s.Gap(1) // ends the file before it is full
	put(t, s, 1, "9")
	if err := s.End(1); err != nil {
		t.Fatal(err)
	}
	put(t, s, 1, "a")
	s.Gap(1)
	if err := errors.Join(s.End(1), s.Close()); err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Glob(filepath.Join(s.Dir(1), "*"+StoreSuffix))
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for i, text := range files(t, s.Dir(1)) {
		have = append(have, strings.TrimLeft(filepath.Base(list[i]), "0")+" "+text)
	}
	if want := []string{"1.blk 12345678", "3.blk 9", "4.blk a", "6.blk "}; !equal(have, want) {
		t.Errorf("%q, want %q", have, want)
	}
}
