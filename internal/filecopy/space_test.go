package filecopy_test

import (
	"os"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy/filecopytest"
	"github.com/gorxe/gorxe/internal/filecopy/sink"
	"github.com/gorxe/gorxe/internal/filecopy/source"
)

// Of files that fit alone, but not together, the first ones arrive. The others are refused before
// anything of them is sent, and can be copied when there is space.
func TestSpaceOfAll(t *testing.T) {
	j := newJob(t)
	j.to = smallDisk(t, 10<<20)
	write(t, j.from+"/a", 6<<20, 1)
	write(t, j.from+"/b", 8<<20, 2)
	write(t, j.from+"/c", 3<<20, 3) // without a journal
	for range 2 {
		o := j.run()
		list := temporaries(t, j.to)
		if len(o.failed) == 0 || len(o.failed) == 3 || len(list) > 0 || o.kerr != nil {
			t.Fatalf("failed: %v, sink: %v, left: %q, want one or two that fit", o.failed, o.kerr,
				list)
		}
		for name, text := range o.failed {
			if !strings.Contains(text, "bytes are needed") {
				t.Errorf("%s: %q, want the space that is needed", name, text)
			}
		}
		if o.Sent > 10<<20 {
			t.Errorf("%d bytes were sent", o.Sent)
		}
	}
	// The space of files that have ended is free again.
	for _, name := range []string{"a", "b", "c"} {
		_ = os.Remove(j.to + "/" + name)
	}
	j.paths = []string{"b"}
	j.ok()
}

// An error of a disk that fills during the copy says what incomplete files occupy.
func TestSpaceOfIncompleteFiles(t *testing.T) {
	j := newJob(t)
	j.to = smallDisk(t, 12<<20)
	write(t, j.from+"/large", 10<<20, 2)
	j.source.Limit = 20 << 20
	j.during = func(_ *filecopytest.Pipe, s *source.Source, _ *sink.Sink) {
		eventually(func() bool { return s.Progress().Sent > 6<<20 })
		_ = os.WriteFile(j.to+"/ballast", make([]byte, 6<<20), 0o600) // as much as fits
	}
	const text = "incomplete files (.gorxe-*.part) in its directory occupy"
	j.fails(map[string]string{"large": text})
	j.during = nil
	must(t, os.Remove(j.from+"/large"))
	write(t, j.from+"/small", 100_000, 1)
	j.fails(map[string]string{"small": text})
}
