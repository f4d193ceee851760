package roce

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notForPrograms are the exported constants and errors of the packages below that no program needs:
// parameters of the engine, and errors that this package replaces.
var notForPrograms = map[string][]string{
	"qp": {"Never", "MinBuffer", "AckNever", "DefaultMaxQP", "RNRInfinite", "DefaultWindow", "PrefetchLines",
		"DefaultReorderMemory", "NumRTTBuckets"},
	"mr": {"DefaultMax*", "LimitMaxMR", "ErrConfig", "ErrBusy", "ErrClosed", "ErrPD", "ErrQP",
		"ErrKey", "OK", "BadKey", "WrongPD", "Bounds", "Denied", "WrongQP", "NotYet", "Failed",
		"Foreign"},
	"xdp": {"ErrClosed", "ErrGone"},
}

// TestAliasesAreComplete checks that the constants and errors of the packages below have a name in
// this package, so that programs need not import them. TestEngineConstants names the constants of
// types that this package defines itself.
func TestAliasesAreComplete(t *testing.T) {
	var text strings.Builder
	for _, f := range []string{"types.go", "errors.go", "options.go", "window.go", "events.go",
		"congestion.go", "class.go",
		"engine_test.go"} {
		b, err := os.ReadFile(f)
		must(t, err)
		text.Write(b)
	}
	for pkg, except := range notForPrograms {
		for _, name := range exportedValues(t, filepath.Join("..", pkg)) {
			skip := slices.ContainsFunc(except, func(p string) bool {
				ok, _ := filepath.Match(p, name)
				return ok
			})
			if !skip && !strings.Contains(text.String(), pkg+"."+name) {
				t.Errorf("package roce has no alias of %s.%s", pkg, name)
			}
		}
	}
}

// exportedValues returns the exported constants and variables of a package.
func exportedValues(t *testing.T, dir string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	must(t, err)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), f, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, d := range tree.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST && g.Tok != token.VAR {
				continue
			}
			for _, s := range g.Specs {
				for _, id := range s.(*ast.ValueSpec).Names {
					if id.IsExported() {
						names = append(names, id.Name)
					}
				}
			}
		}
	}
	return names
}
