package sink

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// opened is a host that records which directories are opened to sync them.
type opened struct {
	host
	names  []string
	refuse string
}

func (o *opened) Open(name string) (*os.File, error) {
	o.names = append(o.names, name)
	if name == o.refuse {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrPermission}
	}
	return o.host.Open(name)
}

// The names of all directories that are created for a target are written to disk. A parent that
// cannot be read is not.
func TestTargetSyncsParents(t *testing.T) {
	base := t.TempDir()
	at := func(names ...string) string { return filepath.Join(append([]string{base}, names...)...) }
	for _, c := range []struct {
		target string
		single bool
		refuse string
		want   []string
	}{
		{at("a", "b", "c"), false, "", []string{at("a", "b"), at("a"), base}},
		{at("a", "b", "c"), false, "", nil},
		{at("a", "d", "file"), true, "", []string{at("a")}},
		{at("a", "file"), true, "", nil},
		{at("e", "f"), false, base, []string{at("e"), base}},
	} {
		files := &opened{refuse: c.refuse}
		var cfg Config
		if err := cfg.target(files, c.target, c.single, nil); err != nil {
			t.Fatal(err)
		}
		cfg.Dir.Close()
		if !slices.Equal(files.names, c.want) {
			t.Errorf("%s: synced %q, want %q", c.target, files.names, c.want)
		}
	}
}
