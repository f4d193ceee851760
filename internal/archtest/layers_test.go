package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// root is the module's root.
var root = filepath.Join("..", "..")

// skipDir reports whether a folder has no source code of ours.
func skipDir(name string) bool {
	return strings.HasPrefix(name, ".") || name == "testdata" || name == "bin"
}

// TestLayers checks import directions, what the pure packages must not use, where unsafe code is
// allowed, and the length of files. ARCHITECTURE.md explains the rules.
func TestLayers(t *testing.T) {
	fset := token.NewFileSet()
	seen := map[string]bool{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != root && skipDir(d.Name()):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go"):
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		f, err := parser.ParseFile(fset, p, src, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		seen[path.Dir(rel)] = true
		checkFile(t, fset, rel, f, strings.Count(string(src), "\n"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"bth", "mr", "qp", "roce", "frame", "driver", "xdp", "loopback",
		"transport/statusbyte", "transport/slidingwindow", "cmd/gorxe"} {
		if !seen[want] {
			t.Errorf("no Go file in %s: adapt this test to the new layout", want)
		}
	}
}

const module = "github.com/gorxe/gorxe/"

// tests is what test programs may import. tools may also import the run queue's package.
var (
	tests = []string{
		"bth/...", "driver", "frame", "mr", "qp", "udp", "xdp/...", "loopback", "roce/...",
		"transport/...", "internal/...",
	}
	tools = append(slices.Clone(tests), "qp/...")
)

// allowed lists which of our packages each folder may import besides those below itself. A trailing
// /... stands for a folder and everything in it. The longest matching folder applies.
var allowed = map[string][]string{
	".":                 {}, // only documentation
	"bth":               {},
	"internal/clock":    {},
	"internal/due":      {},
	"internal/fence":    {},
	"internal/limit":    {},
	"internal/osnet":    {},
	"internal/osthread": {},
	"internal/prefetch": {},
	"internal/safefile": {},
	"internal/stat":     {},
	"internal/wire":     {},
	"internal/cli":      {},
	"internal/halfopen": {"internal/limit"},
	"frame":             {"bth"},
	"driver":            {"bth"},
	"mr":                {"internal/fence", "internal/prefetch"},
	"qp":                {"bth", "mr", "frame", "internal/fence", "internal/prefetch"},
	"xdp": {
		"bth", "driver", "frame", "internal/fence", "internal/limit", "internal/osnet", "internal/udpmsg",
		"internal/prefetch",
	},
	"internal/udpmsg": {"bth", "driver", "frame"},
	"udp":             {"bth", "driver", "frame", "internal/osnet", "internal/udpmsg"},
	"loopback":        {"bth", "driver", "frame", "internal/clock", "internal/pcap", "internal/wire"},
	"internal/service": {
		"bth", "driver", "frame", "internal/osnet", "internal/udpmsg", "roce/cm", "udp",
	},
	"internal/inside": {"bth", "driver", "frame", "internal/loop", "mr", "qp", "roce/cm"},
	"internal/loop": {
		"bth", "driver", "frame", "qp", "internal/clock", "internal/osthread", "internal/wire",
	},
	"roce/cm":        {"bth", "internal/due", "internal/limit"},
	"roce/messenger": {"roce"},
	"roce": {
		"bth", "driver", "frame", "mr", "qp/...", "udp", "xdp", "roce/...", "internal/loop",
		"internal/due", "internal/fence", "internal/halfopen", "internal/inside", "internal/limit",
		"internal/prefetch", "internal/service", "internal/dualport",
	},
	"roce/rsocket":      {"roce", "roce/rsocket/...", "internal/halfopen"},
	"roce/rsocket/core": {},
	"transport": {
		"roce", "internal/endpoint", "internal/halfopen", "internal/limit", "internal/osthread",
		"internal/safefile", "transport/...",
	},
	// A helper of the transports' tests.
	"transport/internal/accept/accepttest": {
		"roce", "loopback", "internal/testbed", "transport/internal/accept",
	},
	"internal":                tools,
	"internal/bench":          append(slices.Clone(tools), "papers/kit"),
	"internal/netsim/figures": append(slices.Clone(tools), "papers/kit"),
	"internal/packetfuzz":     append(slices.Clone(tools), "fuzz/packets"),
	"papers":                  append(slices.Clone(tools), "papers/..."),
	"examples":                {"roce", "roce/messenger", "roce/rsocket", "loopback", "examples/..."},
	"fuzz":                    tests,
	"interop":                 tests,
	"cmd/gorxe":               append(slices.Clone(tools), "papers/...", "cmd/..."),
}

// pure lists the packages without I/O, clocks, locks, goroutines and random sources.
var pure = []string{"bth", "mr", "qp", "qp/sched", "frame", "driver", "roce/cm", "internal/due",
	"internal/limit", "internal/wire", "transport/flow/core", "transport/rftp/core", "roce/rsocket/core"}

// maxLines bounds the length of a file; the target is about 500.
const maxLines = 600

func checkFile(t *testing.T, fset *token.FileSet, rel string, f *ast.File, lines int) {
	test := strings.HasSuffix(rel, "_test.go")
	dir := path.Dir(rel)
	if lines > maxLines {
		t.Errorf("%s has %d lines; split it by concern (limit %d)", rel, lines, maxLines)
	}
	imports := map[string]bool{}
	for _, im := range f.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		imports[p] = true
		if p == "unsafe" && !test && !strings.HasSuffix(rel, "_unsafe.go") {
			t.Errorf("%s imports unsafe; unsafe code lives in files named *_unsafe.go", rel)
		}
		if strings.HasPrefix(p, gopacket) && !test && !slices.Contains(withGopacket, dir) {
			t.Errorf("%s imports %s, which makes each start of a program slow (decision 028)", rel, p)
		}
		if ours, ok := strings.CutPrefix(p, module); ok && !test && !mayImport(dir, ours) {
			t.Errorf("%s imports %s, which is above it or not allowed for it", rel, ours)
		}
	}
	// mr's hooks describe an order to the race detector; other builds do not have them.
	if !test && isPure(dir) && rel != "mr/hooks_race_unsafe.go" {
		checkPure(t, fset, rel, f, imports)
	}
}

func mayImport(dir, ours string) bool {
	rules, folder := []string(nil), ""
	for r, a := range allowed {
		if (dir == r || strings.HasPrefix(dir, r+"/")) && len(r) > len(folder) {
			rules, folder = a, r
		}
	}
	if folder == "" {
		return false
	}
	if folder != "internal" && (ours == folder || strings.HasPrefix(ours, folder+"/")) {
		return true
	}
	for _, r := range rules {
		if base, deep := strings.CutSuffix(r, "/..."); ours == base ||
			(deep && strings.HasPrefix(ours, base+"/")) {
			return true
		}
	}
	return false
}

// isPure reports whether dir is pure. Its sub-packages need not be.
func isPure(dir string) bool {
	for _, p := range pure {
		if dir == p {
			return true
		}
	}
	return false
}

var impureImports = []string{"os", "net", "syscall", "golang.org/x/sys/unix", "math/rand",
	"math/rand/v2",
	"crypto/rand", "log", "sync", "runtime", gopacket}

const gopacket = "github.com/google/gopacket"

// withGopacket lists the packages that may use gopacket. The command gorxe contains none of them.
var withGopacket = []string{"bth/layers", "bth/bthtest", "interop/lab"}

var impureTime = map[string]bool{"Now": true, "Since": true, "Until": true, "Sleep": true,
	"After":     true,
	"AfterFunc": true, "NewTimer": true, "NewTicker": true, "Tick": true}

func checkPure(t *testing.T, fset *token.FileSet, rel string, f *ast.File,
	imports map[string]bool) {
	for _, p := range impureImports {
		if imports[p] {
			t.Errorf("%s imports %s, which a pure package must not use", rel, p)
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			t.Errorf("%s: goroutine in a pure package", fset.Position(n.Pos()))
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && impureTime[n.Sel.Name] {
				t.Errorf("%s: time.%s in a pure package; pass the time as a parameter",
					fset.Position(n.Pos()), n.Sel.Name)
			}
		}
		return true
	})
}
