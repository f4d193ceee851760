package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestFragments checks that the Go code in Markdown files is part of compiled files.
func TestFragments(t *testing.T) {
	for doc, folders := range map[string][]string{
		"README.md":     {"roce/messenger/example_test.go"},
		"docs/guide.md": {"examples/"},
	} {
		var sources []string
		for _, f := range sourceFiles(t, ".go") {
			if slices.ContainsFunc(folders, func(p string) bool { return strings.HasPrefix(f, p) }) {
				sources = append(sources, strings.Join(readLines(t, f), "\n"))
			}
		}
		blocks := strings.Split(strings.Join(readLines(t, doc), "\n"), "```go\n")[1:]
		if len(blocks) == 0 {
			t.Errorf("%s has no Go code", doc)
		}
		for _, b := range blocks {
			code, _, _ := strings.Cut(b, "```")
			if !slices.ContainsFunc(sources, func(s string) bool {
				return strings.Contains(s, code)
			}) {
				t.Errorf("this code in %s is not in %v:\n%s", doc, folders, code)
			}
		}
	}
}

// notListed matches packages that doc.go at the root need not mention: commands, tests, papers,
// examples, and parts of other packages.
var notListed = regexp.MustCompile(`^(\.|\..*|(cmd|deploy|examples|fuzz|interop|papers)(/.*)?|` +
	`(.*/)?internal(/.*)?|.*/core|bth/.*|qp/.*|xdp/.*|transport)$`)

// TestRootDoc checks that doc.go at the root lists all packages for programs, and only packages
// that exist.
func TestRootDoc(t *testing.T) {
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile(`\[github\.com/gorxe/gorxe/([\w/]+)\]`).FindAllStringSubmatch(
		strings.Join(readLines(t, "doc.go"), "\n"), -1) {
		listed[m[1]] = true
	}
	exists := map[string]bool{}
	for _, f := range sourceFiles(t, ".go") {
		dir := path.Dir(f)
		exists[dir] = true
		if !listed[dir] && !notListed.MatchString(dir) {
			t.Errorf("doc.go does not list package %s", dir)
			listed[dir] = true // report it once
		}
	}
	for dir := range listed {
		if !exists[dir] {
			t.Errorf("doc.go lists %s, which does not exist", dir)
		}
	}
}

// exported returns the exported names of the package in a folder: Name, Type.Method and Type.Field,
// also those of embedded types of the package.
func exported(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names, embeds := map[string]bool{}, map[string][]string{}
	files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			declare(d, names, embeds)
		}
	}
	for range 3 { // embedded types may embed others
		for typ, parts := range embeds {
			for _, part := range parts {
				for n := range names {
					if rest, ok := strings.CutPrefix(n, part+"."); ok {
						names[typ+"."+rest] = true
					}
				}
			}
		}
	}
	return names
}

func declare(d ast.Decl, names map[string]bool, embeds map[string][]string) {
	switch d := d.(type) {
	case *ast.FuncDecl:
		if d.Recv != nil {
			names[typeName(d.Recv.List[0].Type)+"."+d.Name.Name] = true
		} else {
			names[d.Name.Name] = true
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.ValueSpec:
				for _, id := range s.Names {
					names[id.Name] = true
				}
			case *ast.TypeSpec:
				declareType(s, names, embeds)
			}
		}
	}
}

func declareType(s *ast.TypeSpec, names map[string]bool, embeds map[string][]string) {
	names[s.Name.Name] = true
	var fields *ast.FieldList
	switch typ := s.Type.(type) {
	case *ast.StructType:
		fields = typ.Fields
	case *ast.InterfaceType:
		fields = typ.Methods
	default:
		return
	}
	for _, f := range fields.List {
		for _, id := range f.Names {
			names[s.Name.Name+"."+id.Name] = true
		}
		if len(f.Names) == 0 {
			embeds[s.Name.Name] = append(embeds[s.Name.Name], typeName(f.Type))
		}
	}
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// identifier matches an exported Go identifier in a code span: Device.Dial, roce.Open,
// loopback.Sim.Go.
var identifier = regexp.MustCompile(`^((?:[a-z]\w*\.)?)([A-Z]\w*(?:\.[A-Z]\w*)?)`)

// isMember reports whether a name is that of an example, or of a method or field of any type.
func isMember(known map[string]map[string]bool, name string) bool {
	if strings.HasPrefix(name, "Example") {
		return true
	}
	for _, names := range known {
		for n := range names {
			if strings.HasSuffix(n, "."+name) {
				return true
			}
		}
	}
	return false
}

// TestIdentifiers checks that the identifiers of gorxe exist that docs/migrating.md and
// docs/guide.md name in code spans. Without the name of a package, they belong to roce. In the
// tables of migrating.md, only the last column is about gorxe. Text may name a method alone.
func TestIdentifiers(t *testing.T) {
	folders := map[string]string{"roce.": "roce", "": "roce", "messenger.": "roce/messenger",
		"rsocket.": "roce/rsocket", "loopback.": "loopback", "xdp.": "xdp"}
	known := map[string]map[string]bool{}
	for prefix, dir := range folders {
		known[prefix] = exported(t, dir)
	}
	for doc, atLeast := range map[string]int{"docs/migrating.md": 150, "docs/guide.md": 10} {
		found, code := 0, false
		for i, line := range readLines(t, doc) {
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if code {
				continue
			}
			table := strings.HasPrefix(line, "|")
			if cells := strings.Split(line, "|"); table && len(cells) > 3 {
				line = cells[len(cells)-2]
			}
			for n, span := range strings.Split(line, "`") {
				m := identifier.FindStringSubmatch(span)
				if n%2 == 0 { // outside of a code span
					continue
				}
				if m == nil || folders[m[1]] == "" {
					continue
				}
				found++
				name := m[2]
				if !known[m[1]][name] && (table || !isMember(known, name)) {
					t.Errorf("%s:%d names %s%s, which does not exist", doc, i+1, m[1], name)
				}
			}
		}
		if found < atLeast {
			t.Errorf("%s names %d identifiers, want at least %d", doc, found, atLeast)
		}
	}
}

// TestLinks checks that links in Markdown to files of the repository lead to files that exist.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	for _, f := range sourceFiles(t, ".md") {
		for i, line := range readLines(t, f) {
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				if strings.Contains(m[1], "://") {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, path.Dir(f), m[1])); err != nil {
					t.Errorf("%s:%d links to %s, which does not exist", f, i+1, m[1])
				}
			}
		}
	}
}
