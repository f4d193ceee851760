package recv

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/cmd/gorxe/internal/usagetest"
)

// Wrong flags are errors before anything is opened.
func TestUsage(t *testing.T) {
	fifo := t.TempDir() + "/fifo"
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	usagetest.Fails(t, Command, map[string]string{
		"":                          "--dir is missing",
		"x":                         "one argument too many",
		"--dir - --allow-pull":      "one file",
		"--dir - --max-sessions 2":  "one file",
		"--dir . --max-sessions 0":  "1 to 1024",
		"--dir . --max-bytes -1":    "not a size",
		"--dir . --overwrite maybe": "never, older, always",
		"--dir . --token-file /no":  "read the token",
		"--dir /nowhere/at/all":     "no such file",
		"--dir " + fifo:             "not a directory", // without waiting for its writer
	})
}
