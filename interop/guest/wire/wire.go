// Package wire is the protocol between the agent inside a guest and the controller outside: frames
// on one byte stream (a virtio-serial port), each for one of several concurrent processes.
//
// A frame is a kind (1 byte), a process number (4 bytes, big endian, chosen by the controller), a
// length (4 bytes, big endian) and that many bytes.
//
//	controller -> agent   Run (a Command as JSON), Stdin, StdinEOF, Signal (1 byte)
//	agent -> controller   Hello (the guest's uptime), Stdout, Stderr, Exit (an Outcome as JSON)
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Kind is the kind of a frame.
type Kind byte

// The kinds of frames.
const (
	Hello Kind = 1 + iota
	Run
	Stdin
	StdinEOF
	Signal
	Stdout
	Stderr
	Exit
)

// PortName is the name of the virtio-serial port that the agent listens on.
const PortName = "gorxe.agent"

// MaxPayload bounds a frame, so that a broken stream cannot ask for memory.
const MaxPayload = 64 << 10

const headerLen = 9

// ErrBroken means that the stream does not contain frames.
var ErrBroken = errors.New("wire: not a frame: both sides use different versions: build the guest image again")

// Frame is one message.
type Frame struct {
	Kind    Kind
	Process uint32
	Payload []byte
}

// Command is the payload of a Run frame.
type Command struct {
	Argv []string `json:"argv"`
	Dir  string   `json:"dir,omitempty"`
}

// Outcome is the payload of an Exit frame.
type Outcome struct {
	// exit status; 128 + number for a signal; 127 if it could not be started
	Status int    `json:"status"`
	Error  string `json:"error,omitempty"` // why it could not be started
}

// Write writes one frame with a single Write call.
func Write(w io.Writer, f Frame) error {
	if len(f.Payload) > MaxPayload {
		return fmt.Errorf("wire: %d bytes do not fit a frame of %d", len(f.Payload), MaxPayload)
	}
	b := make([]byte, headerLen, headerLen+len(f.Payload))
	b[0] = byte(f.Kind)
	binary.BigEndian.PutUint32(b[1:], f.Process)
	binary.BigEndian.PutUint32(b[5:], uint32(len(f.Payload)))
	_, err := w.Write(append(b, f.Payload...))
	return err
}

// Read reads one frame. io.EOF means that the stream ended between two frames.
func Read(r io.Reader) (Frame, error) {
	var h [headerLen]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return Frame{}, err
	}
	f := Frame{Kind: Kind(h[0]), Process: binary.BigEndian.Uint32(h[1:])}
	n := binary.BigEndian.Uint32(h[5:])
	if f.Kind < Hello || f.Kind > Exit || n > MaxPayload {
		return Frame{}, ErrBroken
	}
	f.Payload = make([]byte, n)
	if _, err := io.ReadFull(r, f.Payload); err != nil {
		return Frame{}, io.ErrUnexpectedEOF
	}
	return f, nil
}

// WriteJSON writes a frame whose payload is v as JSON.
func WriteJSON(w io.Writer, k Kind, process uint32, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return Write(w, Frame{Kind: k, Process: process, Payload: b})
}
