package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/gorxe/gorxe/internal/bench"
	"github.com/gorxe/gorxe/internal/cli"
)

// TestMain lets the test binary run as the child process of a side as well.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "bench" && os.Args[2] == bench.SideCommand {
		os.Exit(cli.Run(program(), os.Args[1:]))
	}
	os.Exit(m.Run())
}

func program() *cobra.Command {
	root := &cobra.Command{Use: "gorxe", SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Command())
	return root
}

// gorxeBench runs "gorxe bench" with args.
func gorxeBench(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer
	root := program()
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return cli.Usage(err) })
	root.SetArgs(append([]string{"bench"}, args...))
	root.SetOut(&out)
	root.SetErr(&errs)
	err = root.ExecuteContext(ctx)
	return out.String(), errs.String(), err
}

// run runs "gorxe bench" with args and returns its standard output.
func run(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := gorxeBench(t.Context(), args...)
	if err != nil {
		t.Fatalf("gorxe bench %s: %v\n%s", strings.Join(args, " "), err, errs)
	}
	return out
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("AF_XDP and network namespaces need root")
	}
}

// results decodes the output of --json and checks that every element has the keys.
func results(t *testing.T, out string, keys ...string) []map[string]any {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("%v in %q", err, out)
	}
	keys = append(keys, "name", "value", "unit", "baseline", "baseline_value", "ratio", "spread")
	for _, e := range list {
		for _, key := range keys {
			if _, ok := e[key]; !ok {
				t.Errorf("%v has no key %s", e, key)
			}
		}
	}
	return list
}

// checkPlots checks that files exist and have the format of their names.
func checkPlots(t *testing.T, files ...string) {
	t.Helper()
	for _, f := range files {
		magic := "<?xml"
		if filepath.Ext(f) == ".png" {
			magic = "\x89PNG"
		}
		if text, err := os.ReadFile(f); err != nil || !bytes.HasPrefix(text, []byte(magic)) {
			t.Errorf("the plot %s does not begin with %q: %v", f, magic, err)
		}
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{
		"--only write_rate", "--rounds 0", "--duration 1ms", "--duration 2h", "--mode fast",
		"--plot bench.pdf", "--cpus 0", "--cpus 0,100000", "extra",
		"flow --only hp_latency_3MB", "flow --link wire", "flow --rounds 0", "flow x",
		"rftp --only wan", "rftp --seed x", "rftp --seed -1", "rftp x",
		"indirect --only frp_3", "indirect --cpus 0", "indirect x",
		"statusbyte --only frobnicate", "statusbyte --rounds 0", "statusbyte --link tokenring",
		"statusbyte --cpus 1,2,3", "statusbyte --trace-size 0", "statusbyte --trace-size 23MiB",
		"statusbyte x",
		"scale --qps 0", "scale --qps 65537", "scale --qps -1", "scale --qps x", "scale --mrs 0",
		"scale --mrs 1e6", "scale --window -1", "scale --window 4097", "scale --order up",
		"scale --burst 0", "scale --burst 33", "scale --plot x.pdf", "scale --qps none --mrs none",
		"scale --window none", "scale --plot=", "scale --qps 2 --qps none --mrs none",
		"scale --link wire", "scale --cpus 0", "scale --rounds 0",
	} {
		_, _, err := gorxeBench(t.Context(), strings.Fields(args)...)
		if cli.Status(err) != cli.StatusUsage {
			t.Errorf("gorxe bench %s: %v, want a usage error", args, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("gorxe bench %s: %v, want one line", args, err)
		}
	}
}

// A plot in a missing directory is refused before the measurement.
func TestPlotDirectory(t *testing.T) {
	_, _, err := gorxeBench(t.Context(), "scale", "--plot", "no/such/folder/x.svg")
	if cli.Status(err) != cli.StatusFailure || !strings.Contains(err.Error(), "no/such/folder") {
		t.Errorf("got %v, want an error that names the directory", err)
	}
}

// If the plot cannot be written, the command fails, but prints the results.
func TestUnwritablePlot(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "plot.svg")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	out, _, err := gorxeBench(t.Context(), "indirect", "--link", "memory", "--rounds", "1",
		"--transfers", "2", "--only", "frp_0", "--plot", dir)
	if err == nil || !strings.Contains(out, "frp_0") || strings.Contains(out, "Plot:") {
		t.Errorf("got error %v and output:\n%s\nwant an error and the results", err, out)
	}
}
