package statusbyte

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// After a power failure, which a Store recognizes by another boot ID, only data counts that was
// synced. Without one, for example after a crash of the process, all complete packets count.
func TestStoreAfterPowerFailure(t *testing.T) {
	for _, rebooted := range []bool{false, true} {
		root := t.TempDir()
		s, err := OpenStore(root, 100)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, 0, "synced ") // and waits for the disk
		put(t, s, 1, "synced ")
		if err := errors.Join(s.Put(0, []byte("not synced")), s.Put(2, []byte("new")),
			s.lock.Close()); err != nil { // killed here
			t.Fatal(err)
		}
		if rebooted {
			if err := os.WriteFile(filepath.Join(root, lockFile), []byte("another"),
				0o600); err != nil {
				t.Fatal(err)
			}
		}
		if s, err = OpenStore(root, 0); err != nil {
			t.Fatal(err)
		}
		for device := range uint8(3) {
			put(t, s, device, "next")
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		want := [][]string{{"synced not synced", "next"}, {"synced ", "next"}, {"new", "next"}}
		numbers := []uint64{1, 1, 1} // of the last file
		if rebooted {
			want[0], want[2] = []string{"synced ", "next"}, []string{"next"}
			numbers[0] = 2 // a gap shows that packets are missing
		}
		for device, want := range want {
			dir := s.Dir(uint8(device))
			if got := files(t, dir); !equal(got, want) {
				t.Errorf("rebooted %v, device %d: %q, want %q", rebooted, device, got, want)
			}
			if _, err := os.Stat(filepath.Join(dir, fileName(numbers[device]))); err != nil {
				t.Errorf("rebooted %v, device %d: %v", rebooted, device, err)
			}
		}
	}
}

// A file that is shorter than its private name says does not appear: part of its packets would be
// missing.
func TestStoreShortPart(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, deviceDir(0))
	if err := errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, partName(3, 1<<40, 1<<40)), []byte("x"),
			0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "next")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := files(t, dir); !equal(got, []string{"next"}) {
		t.Errorf("%d files, want only the next", len(got))
	}
	if _, err := os.Stat(filepath.Join(dir, fileName(4))); err != nil {
		t.Error("the next file does not follow a gap:", err)
	}
}

// The Store of an earlier version left files whose names had only the size.
func TestStoreOldPart(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, deviceDir(0))
	if err := errors.Join(os.Mkdir(dir, 0o700),
		os.WriteFile(filepath.Join(dir, fileName(7)), []byte("a"), 0o600),
		os.WriteFile(filepath.Join(dir, ".part.3"), []byte("old half"), 0o600)); err != nil {
		t.Fatal(err)
	}
	s, err := OpenStore(root, 0)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, 0, "next")
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := files(t, dir); !equal(got, []string{"a", "old", "next"}) {
		t.Errorf("%q", got)
	}
}

// Files appear without further packets, by Advance, and a file that is not full is synced by Sync.
func TestStoreAdvance(t *testing.T) {
	s, err := OpenStore(t.TempDir(), 0)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 * maxUnsyncedFiles { // more than may wait
		if err := s.Put(0, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(testTime); s.Advance(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("files are still waiting for the disk")
		}
	}
	got := files(t, s.Dir(0))
	for n, text := range got {
		if text != string([]byte{byte(n)}) {
			t.Errorf("file %d contains %q", n, text)
		}
	}
	if len(got) != 2*maxUnsyncedFiles {
		t.Errorf("%d files", len(got))
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// If the data of a file cannot be synced, its packets count as lost, its number stays unused, and
// the stream continues.
func TestStoreLost(t *testing.T) {
	for _, segment := range []int64{0, 100} {
		s, err := OpenStore(t.TempDir(), segment)
		if err != nil {
			t.Fatal(err)
		}
		put(t, s, 0, "a")
		d := s.devices[0]
		stored := []string{"a"}
		if err := s.Put(0, []byte("b")); err != nil {
			t.Fatal(err)
		}
		p := d.part
		if segment == 0 {
			for len(d.full) == 0 { // on a fast disk, the file appears before Put returns
				stored = append(stored, "b")
				if err := s.Put(0, []byte("b")); err != nil {
					t.Fatal(err)
				}
			}
			p = d.full[0]
		}
		p.flush.wait()
		// The disk reports an error.
		p.asked, p.flush = p.size, &flush{err: errors.New("input/output error"),
			done: make(chan struct{})}
		close(p.flush.done)
		put(t, s, 0, "c")
		want, packets := append(stored, "c"), uint64(1)
		if segment > 0 {
			want, packets = []string{"c"}, 2
		}
		if lost := s.Lost(0); lost.Packets != packets || !errors.Is(lost.Err, ErrStore) {
			t.Errorf("segments of %d: Lost() = %+v, want %d packets", segment, lost, packets)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got := files(t, s.Dir(0)); !equal(got, want) {
			t.Errorf("segments of %d: %q, want %q", segment, got, want)
		}
	}
}

// WithoutSync makes files appear at once.
func TestWithoutSync(t *testing.T) {
	s, err := OpenStore(t.TempDir(), 0, WithoutSync())
	if err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if err := s.Put(0, []byte{byte(n)}); err != nil {
			t.Fatal(err)
		}
		if got := files(t, s.Dir(0)); len(got) != n+1 {
			t.Errorf("%d files after %d packets", len(got), n+1)
		}
	}
	if err := errors.Join(s.End(0), s.Close()); err != nil {
		t.Error(err)
	}
}

// BenchmarkStore stores packets of twelve devices, with and without waiting for the disk.
func BenchmarkStore(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20} {
		for _, segment := range []int64{0, 16 << 20} {
			for _, synced := range []bool{false, true} {
				b.Run(fmt.Sprintf("%d/segment=%d/sync=%v", size, segment, synced),
					func(b *testing.B) {
						opts := []StoreOption{WithoutSync()}
						if synced {
							opts = nil
						}
						s, err := OpenStore(b.TempDir(), segment, opts...)
						if err != nil {
							b.Fatal(err)
						}
						data := make([]byte, size)
						b.SetBytes(int64(size))
						for n := 0; b.Loop(); n++ {
							if err := s.Put(uint8(n%12), data); err != nil {
								b.Fatal(err)
							}
							s.Advance()
						}
						if err := s.Close(); err != nil {
							b.Fatal(err)
						}
					})
			}
		}
	}
}
