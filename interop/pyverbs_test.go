//go:build interop

package interop_test

import (
	"bytes"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorxe/gorxe/interop/guest/image"
	"github.com/gorxe/gorxe/interop/lab"
)

var updateFlag = flag.Bool("update", false,
	"TestPyverbsRXE: write the lists of tests that pass on rxe instead of comparing them")

// suiteRun runs rdma-core's tests and prints a line for each of them.
//
//go:embed pyverbs/run.py
var suiteRun []byte

// suiteReleases are the Debian releases whose rdma-core is tested. The core downloads packages of
// this host's only.
func suiteReleases() []string {
	if *coreFlag {
		return []string{*debFlag}
	}
	return slices.Compact([]string{*debFlag, image.Trixie})
}

// TestPyverbsRXE runs rdma-core's own test suite on the kernel's rxe in a guest, and compares the
// tests that pass with the list for this version. Without -update, it runs in guests of the chosen
// release only.
func TestPyverbsRXE(t *testing.T) {
	if *coreFlag {
		t.Skip("takes minutes in an emulated guest; the core runs TestPyverbs only")
	}
	releases := suiteReleases()
	if !*updateFlag {
		releases = releases[:1]
	}
	for _, release := range releases {
		s := suiteOf(t, release)
		suiteStage(t, "rdma-core's tests on rxe", s, func(t *testing.T) {
			results := suiteInGuest(t, release, s)
			path := suiteList(s)
			if !*updateFlag {
				results.compare(t, path)
				return
			}
			list := strings.Join(results.with("pass"), "\n") + "\n"
			if err := os.WriteFile(path, []byte(list), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestPyverbs runs the test suite under gorxe run, on this host. Every test that passes on rxe must
// pass.
func TestPyverbs(t *testing.T) {
	for _, release := range suiteReleases() {
		s := suiteOf(t, release)
		suiteStage(t, "rdma-core's tests under gorxe run", s, func(t *testing.T) {
			suiteUnderRun(t, s).compare(t, suiteList(s))
		})
	}
}

// suiteOf returns the test suite of a Debian release.
func suiteOf(t *testing.T, release string) *image.Suite {
	t.Helper()
	// The guest's image shows whether this host has what is needed.
	if _, err := imageOf(release); err != nil && *mustFlag {
		t.Fatal(err)
	} else if err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	s, err := image.GetSuite(ctx, image.Options{Debian: release, Log: sayInterop})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func sayInterop(s string) { fmt.Fprintln(os.Stderr, "interop:", s) }

// suiteStage runs f as a subtest, with the columns of the final table.
func suiteStage(t *testing.T, name string, s *image.Suite, f func(t *testing.T)) {
	name += " " + s.Version
	t.Run(name, func(t *testing.T) {
		t.Attr("scenario", name)
		f(t)
	})
}

// suiteList is the file with the names of the tests that pass on rxe.
func suiteList(s *image.Suite) string {
	return filepath.Join("pyverbs", "rxe-"+s.Version+".txt")
}

// suiteResults are the results of tests by their names: pass, fail or skip.
type suiteResults map[string]string

func parseSuite(out string) suiteResults {
	r := suiteResults{}
	for l := range strings.Lines(out) {
		result, name, ok := strings.Cut(strings.TrimSpace(l), " ")
		if ok && strings.HasPrefix(name, "tests.") {
			r[name] = result
		}
	}
	return r
}

// with returns the sorted names of the tests with a result.
func (r suiteResults) with(result string) []string {
	var names []string
	for _, n := range slices.Sorted(maps.Keys(r)) {
		if r[n] == result {
			names = append(names, n)
		}
	}
	return names
}

// compare fails the test if a test of the list does not pass.
func (r suiteResults) compare(t *testing.T, path string) {
	t.Helper()
	list, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: go test -tags interop ./interop -run TestPyverbsRXE -args -update writes it",
			err)
	}
	for name := range strings.FieldsSeq(string(list)) {
		if r[name] != "pass" {
			t.Errorf("%s = %q, want pass, as on rxe", name, r[name])
		}
	}
	t.Logf("%d tests pass, %d are skipped, %d fail: %q", len(r.with("pass")), len(r.with("skip")),
		len(r.with("fail")), r.with("fail"))
}

const (
	suiteTime   = 25 * time.Minute // limit for a run in a guest, which takes minutes
	suiteMemory = 1500             // MiB of the guest: Python, and regions of hundreds of MiB
)

// suiteInGuest runs the test suite on rxe.
func suiteInGuest(t *testing.T, release string, s *image.Suite) suiteResults {
	ctx, cancel := context.WithTimeout(context.Background(), suiteTime)
	defer cancel()
	img, err := image.Get(ctx, image.Options{Debian: release, Module: "..", Files: s.Files,
		Log: sayInterop})
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(ctx, lab.Options{Image: img, Memory: suiteMemory})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	g := l.Guests[0]
	if err := g.Put(ctx, "/root/run.py", 0o644, bytes.NewReader(suiteRun)); err != nil {
		t.Fatal(err)
	}
	res, err := g.Exec("python3 /root/run.py /"+image.SuiteTests+" --dev rxe0", suiteTime)
	if err == nil {
		err = res.Err()
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, g.Console())
	}
	t.Logf("failures:\n%s", res.Stderr)
	return parseSuite(res.Stdout)
}

// suiteScript runs the command in its arguments after the first, the folder of the test suite, in
// a chroot.
const suiteScript = `set -e
root=$1; shift
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --rbind /sys "$root/sys"
mount -t tmpfs tmpfs "$root/tmp"
cat > "$root/tmp/run.py"
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
exec chroot "$root" "$@"`

// suiteUnderRun runs the test suite under gorxe run.
func suiteUnderRun(t *testing.T, s *image.Suite) suiteResults {
	gorxe, err := gorxeBinary()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := lab.NewNS()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", suiteScript, "sh", s.Root, gorxe,
		"run", "--dev", "127.0.0.1", "--", "python3", "/tmp/run.py", "/"+image.SuiteTests, "--dev",
		"rxe0")
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(suiteRun), &out, &errs
	if err := ns.Start(cmd); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	t.Logf("failures:\n%s", &errs)
	if err != nil {
		t.Fatal(err)
	}
	return parseSuite(out.String())
}
