package recv

import (
	"bytes"
	"strings"
	"testing"
)

// Wrong flags are errors before anything is opened.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                          "--dir is missing",
		"x":                         "one argument too many",
		"--dir - --allow-pull":      "one file",
		"--dir - --max-sessions 2":  "one file",
		"--dir . --max-sessions 0":  "1 to 1024",
		"--dir . --max-bytes -1":    "not a size",
		"--dir . --overwrite maybe": "never, older, always",
		"--dir . --token-file /no":  "read the token",
		"--dir /nowhere/at/all":     "no such file",
	} {
		cmd := Command()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetArgs(strings.Fields(args))
		cmd.SetOut(&bytes.Buffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("recv %s: %v, want an error with %q", args, err, want)
		}
	}
}
