package wire

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	frames := []Frame{
		{Hello, 0, []byte("3.1")}, {Run, 1, []byte(`{"argv":["true"]}`)}, {Stdin, 0xfffffffe, nil},
		{Stdout, 7, bytes.Repeat([]byte{0, 0xff}, MaxPayload/2)}, {Exit, 7, []byte(`{"status":3}`)},
	}
	for _, f := range frames {
		if err := Write(&b, f); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range frames {
		got, err := Read(&b)
		if err != nil || got.Kind != want.Kind || got.Process != want.Process ||
			!bytes.Equal(got.Payload, want.Payload) {
			t.Fatalf("got %v (%v), want %v", got.Kind, err, want.Kind)
		}
	}
	if _, err := Read(&b); err != io.EOF {
		t.Fatalf("after the last frame: %v, want EOF", err)
	}
}

func TestBrokenStreams(t *testing.T) {
	for name, c := range map[string]struct {
		bytes string
		want  error
	}{
		"unknown kind":   {"\x00\x00\x00\x00\x01\x00\x00\x00\x00", ErrBroken},
		"too long":       {"\x06\x00\x00\x00\x01\xff\x00\x00\x00", ErrBroken},
		"half a header":  {"\x06\x00\x00", io.ErrUnexpectedEOF},
		"half a payload": {"\x06\x00\x00\x00\x01\x00\x00\x00\x04ab", io.ErrUnexpectedEOF},
	} {
		if _, err := Read(bytes.NewReader([]byte(c.bytes))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if err := Write(io.Discard, Frame{Stdout, 1, make([]byte, MaxPayload+1)}); err == nil {
		t.Error("a frame longer than MaxPayload was written")
	}
}
