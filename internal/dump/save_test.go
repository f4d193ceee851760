package dump

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// A file without frames describes an interface, because libpcap refuses files without any.
func TestSaveNothing(t *testing.T) {
	var out bytes.Buffer
	s, err := NewSaver(Stdio, "", &out, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	const sectionHeader, kindInterface = 28, 1
	b := out.Bytes()
	if len(b) < sectionHeader+4 ||
		binary.LittleEndian.Uint32(b[sectionHeader:]) != kindInterface {
		t.Errorf("the file is % x", b)
	}
}
