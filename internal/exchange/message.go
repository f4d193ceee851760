package exchange

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// Limits and defaults of the exchange.
const (
	Version     = 1         // of the exchange; both sides must have the same
	DefaultPort = 18516     // TCP; perftest's own protocol uses 18515
	MaxMessage  = 256 << 10 // bytes of one message, including the newline
	MaxQPs      = 1024      // queue pairs in one message
	maxText     = 512       // bytes of a peer's error text that are shown
)

// Kind is the kind of a message.
type Kind string

// The kinds of message.
const (
	KindRequest Kind = "request"
	KindAccept  Kind = "accept"
	KindRun     Kind = "run"
	KindReady   Kind = "ready"
	KindDone    Kind = "done"
	KindError   Kind = "error"
)

// The errors of this package.
var (
	// ErrGarbage means that the peer speaks another protocol.
	ErrGarbage = errors.New("the peer does not speak gorxe's exchange: " +
		"check that the port belongs to gorxe up or gorxe perf")
	// ErrVersion means that the peer speaks another version of the exchange.
	ErrVersion = errors.New("the peer speaks another version of gorxe's exchange: " +
		"use the same gorxe on both sides")
	// ErrProtocol means that a message was not expected or has values out of range.
	ErrProtocol = errors.New("the peer violated gorxe's exchange: use the same gorxe on both sides")
	// ErrTooLong means that a message is longer than MaxMessage.
	ErrTooLong = errors.New("message too long for gorxe's exchange")
	// ErrTimeout means that no complete message arrived in time.
	ErrTimeout = errors.New("the peer does not answer: check that gorxe is still running there")
	// ErrGone means that the peer closed the connection.
	ErrGone = errors.New("the peer closed the connection")
	// ErrRemote means that the peer sent an error. The text of the peer follows.
	ErrRemote = errors.New("the peer reports")
)

// QP describes one queue pair of the sender.
type QP struct {
	Endpoint roce.Endpoint `json:"endpoint"`
	// memory that the receiver may access through this QP
	Buffer roce.RemoteBuffer `json:"buffer"`
}

// Message is one message of the exchange. Fields that a kind does not use are left out.
type Message struct {
	Gorxe   int             `json:"gorxe"` // Version; must be the first field, see preamble
	Kind    Kind            `json:"kind"`
	Service string          `json:"service,omitempty"` // request: "ping" or "perf"
	Params  json.RawMessage `json:"params,omitempty"`  // request, run, done: defined by the service
	QPs     []QP            `json:"qps,omitempty"`     // request, accept
	Error   string          `json:"error,omitempty"`   // error: a text for the user
}

// preamble is the start of every message.
const preamble = `{"gorxe":`

const max24 = 1<<24 - 1

// check returns an error if m has values that gorxe never sends.
func (m *Message) check() error {
	if m.Gorxe != Version {
		return fmt.Errorf("%w: it sent version %d, this is version %d", ErrVersion, m.Gorxe,
			Version)
	}
	if len(m.QPs) > MaxQPs {
		return fmt.Errorf("%w: %d queue pairs, at most %d are allowed", ErrProtocol, len(m.QPs),
			MaxQPs)
	}
	for i := range m.QPs {
		if err := m.QPs[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (q *QP) check() error {
	e, b := &q.Endpoint, &q.Buffer
	switch {
	case e.QPN == 0 || e.QPN >= max24:
		return fmt.Errorf("%w: QPN %#x", ErrProtocol, uint32(e.QPN))
	case e.PSN > max24:
		return fmt.Errorf("%w: PSN %#x", ErrProtocol, uint32(e.PSN))
	case !e.MTU.Valid():
		return fmt.Errorf("%w: path MTU %d", ErrProtocol, e.MTU)
	case e.Class >= roce.NumClasses:
		return fmt.Errorf("%w: traffic class %d", ErrProtocol, e.Class)
	case e.GID.IsZero() || e.GID.IsMulticast():
		return fmt.Errorf("%w: GID %v", ErrProtocol, e.GID)
	case b.Addr+b.Len < b.Addr:
		return fmt.Errorf("%w: buffer of %d bytes at %#x", ErrProtocol, b.Len, b.Addr)
	}
	return nil
}

// Decode stores the parameters of the service in v. Unknown fields are an error.
func (m *Message) Decode(v any) error {
	if err := strict(m.Params, v); err != nil {
		return fmt.Errorf("%w: parameters of %q: %v", ErrProtocol, m.Kind, err)
	}
	return nil
}

// Encode returns v as the parameters of a message. It panics if v cannot be encoded as JSON, which
// is an error of the program.
func Encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("exchange: cannot encode parameters: " + err.Error())
	}
	return b
}
