package run

import (
	"bytes"
	"debug/elf"
	"os"
)

// isForeign reports whether a file is a static binary without libibverbs.
func isForeign(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false // a script, or not executable
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	b, err := os.ReadFile(path)
	return err == nil && !bytes.Contains(b, []byte("infiniband_verbs"))
}
