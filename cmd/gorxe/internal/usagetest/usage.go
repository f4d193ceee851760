package usagetest

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Fails runs a command with each of the given arguments, which are separated by spaces, and checks
// that its error contains the text that belongs to them.
func Fails(t *testing.T, command func() *cobra.Command, want map[string]string) {
	t.Helper()
	for args, text := range want {
		cmd := command()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(&bytes.Buffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("%s %s: %v, want an error with %q", cmd.Name(), args, err, text)
		}
	}
}
