package cli

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Shells complete the words of flags and the names of interfaces, but no file names there.
func TestComplete(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"up --mode ", "native\ngeneric\n"},
		{"up --dev l", "lo\n"},
		{"up l", "lo\n"},
		{"up lo l", ""},
		{"up --interface l", "lo\n"},
		{"up --number ", ""},
		{"plain ", ""},
	} {
		root := &cobra.Command{Use: "gorxe"}
		up := &cobra.Command{Use: "up", ValidArgsFunction: CompleteInterface,
			Run: func(*cobra.Command, []string) {}}
		up.Flags().Var(&Choice{Words: []string{"native", "generic"}}, "mode", "")
		up.Flags().String("dev", "", "")
		up.Flags().String("interface", "", "")
		up.Flags().Int("number", 0, "")
		root.AddCommand(up, &cobra.Command{Use: "plain", Run: func(*cobra.Command, []string) {}})
		args := append([]string{cobra.ShellCompRequestCmd}, strings.Split(c.args, " ")...)
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetErr(&bytes.Buffer{})
		root.SetArgs(args)
		complete(root, args)
		err := root.Execute()
		words, found := strings.CutSuffix(out.String(), ":4\n") // no file names
		if err != nil || !found || !strings.Contains(words, c.want) || c.want == "" && words != "" {
			t.Errorf("%q: %q, %v; want %q", c.args, &out, err, c.want)
		}
	}
}
