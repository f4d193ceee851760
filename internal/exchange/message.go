package exchange

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/roce"
)

// The limits and defaults of the exchange.
const (
	Version     = 1         // of this exchange; both ends must have the same
	DefaultPort = 18516     // TCP; perftest's own exchange has 18515
	MaxMessage  = 256 << 10 // bytes of one message, newline included
	MaxQPs      = 1024      // queue pairs in one message
	maxText     = 512       // bytes of a peer's error text that are shown
)

// Kind says what a message is for.
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
	// ErrGarbage: the peer speaks something else.
	ErrGarbage = errors.New("the peer does not speak gorxe's exchange: is that port a gorxe's (gorxe up, gorxe perf)?")
	// ErrVersion: the peer speaks another version of the exchange.
	ErrVersion = errors.New("the two ends speak different versions of gorxe's exchange: use the same gorxe on both")
	// ErrProtocol: a message of gorxe's that does not belong here, or with values out of range.
	ErrProtocol = errors.New("the peer broke gorxe's exchange: use the same gorxe on both ends")
	// ErrTooLong: a message beyond MaxMessage.
	ErrTooLong = errors.New("message too long for gorxe's exchange")
	// ErrTimeout: nothing, or only a part, came in time.
	ErrTimeout = errors.New("the peer does not answer: is gorxe still running there?")
	// ErrGone: the peer closed the connection.
	ErrGone = errors.New("the peer closed the connection")
	// ErrRemote: the peer refused, or failed, and said why.
	ErrRemote = errors.New("the peer says")
)

// QP is what an end tells about one of its queue pairs.
type QP struct {
	Endpoint roce.Endpoint     `json:"endpoint"`
	Buffer   roce.RemoteBuffer `json:"buffer"` // what the peer may access through this QP
}

// Message is one message. Fields that its kind has no use for are left out.
type Message struct {
	Gorxe   int             `json:"gorxe"` // Version; first, because readers judge by the first bytes
	Kind    Kind            `json:"kind"`
	Service string          `json:"service,omitempty"` // request: "ping", "perf"
	Params  json.RawMessage `json:"params,omitempty"`  // request, run, done: the service's own
	QPs     []QP            `json:"qps,omitempty"`     // request, accept
	Error   string          `json:"error,omitempty"`   // error: for the user
}

// preamble is how every message starts.
const preamble = `{"gorxe":`

const max24 = 1<<24 - 1

// check refuses what no gorxe of this version sends.
func (m *Message) check() error {
	if m.Gorxe != Version {
		return fmt.Errorf("%w: it sent version %d, this is version %d", ErrVersion, m.Gorxe, Version)
	}
	if len(m.QPs) > MaxQPs {
		return fmt.Errorf("%w: %d queue pairs, at most %d are allowed", ErrProtocol, len(m.QPs), MaxQPs)
	}
	for i := range m.QPs {
		e, b := &m.QPs[i].Endpoint, &m.QPs[i].Buffer
		switch {
		case e.QPN == 0 || e.QPN >= max24:
			return fmt.Errorf("%w: QPN %#x", ErrProtocol, uint32(e.QPN))
		case e.PSN > max24:
			return fmt.Errorf("%w: PSN %#x", ErrProtocol, uint32(e.PSN))
		case !e.MTU.Valid():
			return fmt.Errorf("%w: path MTU %d", ErrProtocol, e.MTU)
		case e.GID.IsZero() || e.GID.IsMulticast():
			return fmt.Errorf("%w: GID %v", ErrProtocol, e.GID)
		case b.Addr+b.Len < b.Addr:
			return fmt.Errorf("%w: buffer of %d bytes at %#x", ErrProtocol, b.Len, b.Addr)
		}
	}
	return nil
}

// Decode reads the service's own parameters into v, strictly: a field that this
// version does not know is an error, not a guess.
func (m *Message) Decode(v any) error {
	if err := strict(m.Params, v); err != nil {
		return fmt.Errorf("%w: parameters of %q: %v", ErrProtocol, m.Kind, err)
	}
	return nil
}

// Encode returns v as a message's parameters. v is a struct of ours, which
// always encodes.
func Encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic("exchange: parameters that do not encode: " + err.Error())
	}
	return b
}
