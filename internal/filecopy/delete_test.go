package filecopy_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gorxe/gorxe/internal/filecopy/part"
)

// Deleting spares the temporary files of a session that runs, and the directories that contain
// them. Those that nobody writes any more go.
func TestDeleteSparesRunning(t *testing.T) {
	for _, dry := range []bool{true, false} {
		j := newJob(t)
		j.sink.Delete, j.sink.DryRun = true, dry
		want := []string{}
		for _, name := range []string{"", "sub/dir", "stale"} {
			dir := filepath.Join(j.to, name)
			must(t, os.MkdirAll(dir, 0o755))
			root, err := os.OpenRoot(dir)
			must(t, err)
			defer root.Close()
			left, _, err := part.Resume(root, "left", part.Identity{Size: 5 << 20}, 1)
			must(t, err)
			left.Keep()
			if name == "stale" {
				continue
			}
			before := temporaries(t, dir)
			running, _, err := part.Resume(root, "running", part.Identity{Size: 5 << 20}, 1)
			must(t, err)
			defer running.Discard()
			for _, temp := range temporaries(t, dir) {
				if !slices.Contains(before, temp) {
					want = append(want, strings.TrimPrefix(name+"/"+temp, "/"))
				}
			}
		}
		o := j.ok()
		// Temporary files are not listed. Of the directories, only one can be deleted.
		if len(o.deleted) != 1 || o.deleted[0] != "stale" || o.sum.Deleted != 1 {
			t.Errorf("dry run %v: deleted %q and %d names, want stale", dry, o.deleted,
				o.sum.Deleted)
		}
		slices.Sort(want)
		if got := temporaries(t, j.to); !dry && !slices.Equal(got, want) {
			t.Errorf("%q are left, want %q", got, want)
		} else if dry && len(got) != 3*2+2*2 {
			t.Errorf("a dry run has left %q", got)
		}
	}
}
