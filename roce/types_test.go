package roce

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// aliases are the exported aliases of this package. `go doc` shows an alias as one line, so all
// types whose fields or methods programs need are defined in this package. The rest are keys and
// addresses, opaque types, and types that other packages implement.
var aliases = map[string]bool{
	"GID": true, "MAC": true, "QPN": true, "PSN": true, "RKey": true, "LKey": true, "PKey": true,
	"QKey": true, "MTU": true, "Path": true, "Features": true, "RejectReason": true,
	"DropReason": true, "XDPMode": true, "Port": true, "Network": true,
}

func TestAliases(t *testing.T) {
	entries, err := os.ReadDir(".")
	must(t, err)
	found := map[string]bool{}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		must(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			if s, ok := n.(*ast.TypeSpec); ok && s.Assign.IsValid() && s.Name.IsExported() {
				found[s.Name.Name] = true
			}
			return true
		})
	}
	for name := range found {
		if !aliases[name] {
			t.Errorf("%s is an alias: define the type, so that its documentation shows its fields",
				name)
		}
	}
	for name := range aliases {
		if !found[name] {
			t.Errorf("there is no alias %s", name)
		}
	}
}
