package pattern

import (
	"strings"
	"testing"
)

func TestIncludes(t *testing.T) {
	for _, c := range []struct {
		rules   string // "-" excludes, "+" includes
		in, out string // paths; a trailing slash means a directory
	}{
		{"", "a a/b", ""},
		{"-*.o", "a.c a.o.c o .o/x", "a.o a/b/c.o .o"},
		{"-/build", "a/build buildx", "build build/"},
		{"-build/", "build a/build", "build/ a/build/"},
		{"-a/b", "b a/c a/b/c xa/b", "a/b x/a/b"},
		{"-/a/b", "x/a/b", "a/b"},
		{"-a/**", "a a/ b", "a/b a/b/c"},
		{"-**/tmp", "tmpx", "tmp x/tmp x/y/tmp"},
		{"-**/a/**", "a xa/b", "a/b x/a/b a/b/c"},
		{"-**/*.o", "o", "a.o x/a.o"},
		{"-/**/a", "b", "a x/a"},
		{"-x/**/a", "x/a", "x/y/a x/y/z/a"},
		{"-a/***", "a b/ xa/", "a/ a/b a/b/ x/a/ x/a/b"},
		{"-/a/***", "x/a/", "a/ a/b"},
		{"-**/a/***", "b/", "a/ x/a/b"},
		{"-[[:alpha:]]*", "1a", "a1 a B"},
		{"-[![:digit:]_]", "1 _ aa", "a"},
		{"-[x[:upper:]-]", "a", "x A -"},
		{"-[[:x]", "a]", "[ : x"},
		{"-?.txt", "aa.txt .txt", "a.txt é.txt"},
		{"-[a-c]x", "dx", "ax cx"},
		{"-[!a-c]x", "ax", "dx"},
		{"-[]x]", "a", "] x"},
		{"-[!]x]", "] x", "a"},
		{"-[\\d]", "5", "d"},
		{"-[\\pL]", "q", "p L"},
		{"-[a\\-c]", "b", "a - c"},
		{"-[\\]^[&]", "a", "] ^ [ &"},
		{"-[\\é-ü]", "e", "é ö ü"},
		{"-a\\*b", "axb", "a*b"},
		{"+*.c -*", "a.c d/e.c", "a.h d/"},
		{"+*/ +*.c -*", "a.c d/ d/e.c", "a.h"},
		{"-a.b", "axb", "a.b"},
		{"-[.]x", "ax", ".x"},
		{"-a*c", "a\n", "a\nc a\xffc"},
	} {
		var l List
		for _, r := range strings.Fields(c.rules) {
			if err := l.Add(r[0] == '-', r[1:]); err != nil {
				t.Fatal(err)
			}
		}
		check := func(paths string, want bool) {
			for _, p := range strings.Split(paths, " ") {
				name, dir := strings.CutSuffix(p, "/")
				if name != "" && l.Includes(name, dir) != want {
					t.Errorf("rules %q: Includes(%q, %v) = %v, want %v", c.rules, name, dir, !want, want)
				}
			}
		}
		check(c.in, true)
		check(c.out, false)
	}
	if !(*List)(nil).Includes("a", false) {
		t.Error("the nil List excludes something")
	}
}

func TestInvalid(t *testing.T) {
	for _, p := range []string{"", "/", "[a", "a\\", "[z-a]", "[[:letter:]]", "[[:alpha:]", "\xff", strings.Repeat("a", 1001)} {
		var l List
		if err := l.Add(true, p); err == nil {
			t.Errorf("Add(%q) = nil, want an error", p)
		}
	}
	if err := new(List).Add(true, "\xff*"); !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("Add of invalid UTF-8 = %v, want an error that says so", err)
	}
}

// Patterns come from peers. None makes matching slow or panics.
func FuzzPattern(f *testing.F) {
	f.Add("a*b?[c-d]**/e\\", "a/b")
	f.Fuzz(func(_ *testing.T, pattern, path string) {
		var l List
		if l.Add(true, pattern) == nil {
			l.Includes(path, true)
		}
	})
}
