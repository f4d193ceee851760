// Package bthtest gives tests captured RoCEv2 traffic: Ethernet frames sent by the Linux kernel's
// rxe (6.1), one scenario per file. captures/README.md describes the files. Only tests may import
// this package.
package bthtest

import (
	"embed"
	"errors"
	"io"
	"path"
	"testing"

	"github.com/google/gopacket/pcapgo"
)

//go:embed captures/*.pcap
var files embed.FS

// Names lists the captures, such as "rc_read.pcap", in lexical order.
func Names(t testing.TB) []string {
	t.Helper()
	entries, err := files.ReadDir("captures")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Frames returns the Ethernet frames of a capture. The caller may modify them.
func Frames(t testing.TB, name string) [][]byte {
	t.Helper()
	f, err := files.Open(path.Join("captures", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var frames [][]byte
	for {
		b, info, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return frames
		}
		if err != nil {
			t.Fatalf("%s, frame %d: %v", name, len(frames)+1, err)
		}
		if info.CaptureLength != info.Length {
			t.Fatalf("%s, frame %d: truncated from %d to %d bytes", name, len(frames)+1,
				info.Length, info.CaptureLength)
		}
		frames = append(frames, b)
	}
}
