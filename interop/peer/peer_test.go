package peer

import (
	"bytes"
	"io/fs"
	"testing"
)

// Every program that can be started has a source.
func TestSources(t *testing.T) {
	for _, name := range []string{"verbs-peer", Indirect, RFTP, SlidingWindow, StatusByte} {
		if _, err := fs.Stat(Sources(), name+".c"); err != nil {
			t.Error(err)
		}
	}
}

func TestParse(t *testing.T) {
	f := parse("wc id=7 status=12 text=transport retry counter exceeded")
	if f[""] != "wc" || f.Num("id") != 7 || f["text"] != "transport retry counter exceeded" ||
		f.Num("nothing") != 0 {
		t.Errorf("%q", f)
	}
	if f := parse("ok addr=0xffffffffffffffff"); f.Num("addr") != 1<<64-1 {
		t.Errorf("%q", f)
	}
}

// The contents of one block must not pass for another block's, nor for the same block shifted.
func TestPatternsDiffer(t *testing.T) {
	a, b := make([]byte, 4096), make([]byte, 4096)
	Fill(a, 1)
	Fill(b, 2)
	if bytes.Equal(a, b) || Check(a, 1) != nil || Check(a, 2) == nil || Check(a[1:], 1) == nil {
		t.Error("two patterns are equal")
	}
	if bytes.Contains(b, a[:8]) {
		t.Error("the pattern of seed 1 begins somewhere in that of seed 2")
	}
}
