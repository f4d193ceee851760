package run

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
)

// isForeign reports whether a file is a static binary without libibverbs.
func isForeign(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	e, err := elf.NewFile(f)
	if err != nil {
		return false // a script
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	found, err := contains(f, "infiniband_verbs")
	return err == nil && !found
}

// contains reports whether a reader contains a text. It reads in pieces, because a program may be
// large.
func contains(r io.Reader, text string) (bool, error) {
	buf := make([]byte, 64<<10)
	kept := 0 // bytes of the previous piece
	for {
		n, err := r.Read(buf[kept:])
		b := buf[:kept+n]
		if bytes.Contains(b, []byte(text)) {
			return true, nil
		}
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		kept = copy(buf, b[max(len(b)-len(text)+1, 0):])
	}
}
