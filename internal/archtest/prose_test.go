package archtest

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

const (
	// maxColumns bounds comments and Markdown, with tabs of tabWidth columns.
	maxColumns = 100
	tabWidth   = 4
)

// sourceFiles returns the files below the module's root whose names have one of the endings, with
// slashes and relative to the root.
func sourceFiles(t *testing.T, endings ...string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && skipDir(d.Name()):
			return filepath.SkipDir
		case !d.IsDir() && slices.Contains(endings, filepath.Ext(p)):
			rel, err := filepath.Rel(root, p)
			if err != nil {
				return err
			}
			files = append(files, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 {
		t.Fatalf("no files %v below %s", endings, root)
	}
	return files
}

func readLines(t *testing.T, rel string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, rel))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// columns is the width of a line on a screen.
func columns(line string) int {
	tabs := strings.Count(line, "\t")
	return utf8.RuneCountInString(line) + tabs*(tabWidth-1)
}

// unbreakable matches what may not be wrapped: Go directives, and words that are too long alone.
var unbreakable = regexp.MustCompile(`^\s*(//(go:|nolint|line )|(//|[-*]|\d+\.)?\s*\S+$)`)

// TestWidth checks that comments and Markdown wrap at 100 columns. Tables, code blocks and links
// in Markdown are exempt.
func TestWidth(t *testing.T) {
	for _, f := range sourceFiles(t, ".go", ".md", ".s", ".c", ".h") {
		markdown, code := path.Ext(f) == ".md", false
		for i, line := range readLines(t, f) {
			text := strings.TrimSpace(line)
			if markdown && strings.HasPrefix(text, "```") {
				code = !code
			}
			exempt := code || strings.HasPrefix(text, "|") || strings.HasPrefix(line, "    ") ||
				strings.Contains(text, "](")
			if !markdown {
				block := path.Ext(f) != ".go" && strings.HasPrefix(text, "*")
				exempt = !strings.Contains(text, "// ") && !block
			}
			if exempt || columns(line) <= maxColumns || unbreakable.MatchString(line) {
				continue
			}
			if at := strings.Index(line, "// "); !markdown && at >= 0 && insideString(line[:at]) {
				continue
			}
			t.Errorf("%s:%d: %d columns, want at most %d", f, i+1, columns(line), maxColumns)
		}
	}
}

// insideString reports whether text ends inside a string literal.
func insideString(text string) bool {
	return (strings.Count(text, `"`)-strings.Count(text, `\"`))%2 == 1 ||
		strings.Count(text, "`")%2 == 1
}

var (
	orderEntry = regexp.MustCompile(`^//\s+(?:- )?([\w.]+\.(?:go|s)(?:, [\w.]+\.(?:go|s))*)(?::|\s{2,})`)
	orderStart = regexp.MustCompile(`(?i)^// (# )?reading order`)
)

// TestReadingOrder checks that the reading order in a doc.go lists the files of its package: all
// that exist, and none that does not.
func TestReadingOrder(t *testing.T) {
	checked := 0
	for _, f := range sourceFiles(t, ".go") {
		if path.Base(f) != "doc.go" {
			continue
		}
		lines := readLines(t, f)
		start := slices.IndexFunc(lines, orderStart.MatchString)
		if start < 0 {
			continue
		}
		checked++
		var listed []string
		for _, l := range lines[start:] {
			if m := orderEntry.FindStringSubmatch(l); m != nil {
				listed = append(listed, strings.Split(m[1], ", ")...)
			}
		}
		checkListed(t, f, listed)
	}
	if checked < 10 {
		t.Errorf("%d reading orders found, want at least 10", checked)
	}
}

func checkListed(t *testing.T, doc string, listed []string) {
	t.Helper()
	dir := path.Dir(doc)
	for _, name := range listed {
		if _, err := os.Stat(filepath.Join(root, dir, name)); err != nil {
			t.Errorf("%s lists %s, which does not exist", doc, name)
		}
	}
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		name := e.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") ||
			name == "doc.go" {
			continue
		}
		if !slices.Contains(listed, name) && !variant(name, listed) {
			t.Errorf("%s does not list %s", doc, name)
		}
	}
}

// variant reports whether a file is another platform's or the unsafe part of a listed one:
// copy_unsafe.go of copy.go, counter_none.go of counter_asm.go.
func variant(name string, listed []string) bool {
	stem := func(s string) string {
		s, _, _ = strings.Cut(s, ".")
		s, _, _ = strings.Cut(s, "_")
		return s
	}
	return slices.ContainsFunc(listed, func(l string) bool { return stem(l) == stem(name) })
}
