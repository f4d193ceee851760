package image

import (
	"maps"
	"slices"
	"testing"
	"testing/fstest"
)

// Peers are compiled again when any of their files changes, including the common header.
func TestSurvey(t *testing.T) {
	files := fstest.MapFS{"a.c": {Data: []byte("x")}, "b.c": {Data: []byte("y")},
		"common.h": {Data: []byte("z")}}
	sum, names, err := survey(files)
	if err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Fatalf("programs %q, %v", names, err)
	}
	if again, _, _ := survey(files); again != sum {
		t.Errorf("the same files are %s and %s", sum, again)
	}
	for name, other := range map[string]fstest.MapFS{
		"a header changed": {"common.h": {Data: []byte("Z")}},
		"a file was added": {"c.h": {}},
		"a border moved":   {"a.c": {Data: []byte("xb.c")}, "b.c": {}},
	} {
		changed := maps.Clone(files)
		maps.Copy(changed, other)
		if s, _, err := survey(changed); err != nil || s == sum {
			t.Errorf("%s: still %s, %v", name, s, err)
		}
	}
}
