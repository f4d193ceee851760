package service

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gorxe/gorxe/driver"
)

const (
	// MaxMessage is the size of the largest message, bytes.
	MaxMessage = 64 << 10
	// MaxReport is the size of the largest report of a member, bytes.
	MaxReport = 256 << 10
	// MaxStatus is the size of the largest status of a service, bytes.
	MaxStatus = 16 << 20

	// DefaultPerUser is the default of Options.PerUser.
	DefaultPerUser = 64

	version = 2

	maxConns      = 512            // connections to the unix socket
	maxSockets    = 64             // addresses of a member with a socket
	maxKept       = 2 * maxSockets // sockets of a member, with closed ones that still exist
	maxGroups     = 64             // multicast groups of a member
	maxListens    = 1024
	maxWills      = 4096
	maxFrame      = 512 // of a will, bytes
	maxName       = 64  // bytes of the name of a program
	joinPatience  = 5 * time.Second
	writePatience = time.Second
)

// Messages of a connection per second, and how many may come at once. More are read later.
const (
	messageRate  = 5000
	messageBurst = 10_000
)

// Errors of New, Join and Status.
var (
	// ErrNone means that no service answers at the path, or that its socket may not be opened.
	ErrNone = driver.ErrNoService
	// ErrOtherNet means that the service is in another network namespace.
	ErrOtherNet = errors.New("the node service is in another network namespace")
	// ErrRefused means that the service has refused the program.
	ErrRefused = driver.ErrServiceRefused
	// ErrTaken means that the socket of a service belongs to another one.
	ErrTaken = errors.New("the socket is in use")
)

// Operations of requests, and kinds of events.
const (
	opJoin     = "join"
	opLeave    = "leave"
	opSocket   = "socket"  // of an address or a multicast group
	opClose    = "close"   // such a socket
	opResolve  = "resolve" // the next hop
	opListen   = "listen"
	opUnlisten = "unlisten"
	opWill     = "will"
	opMixed    = "mixed"  // runs have packets of several slots
	opReport   = "report" // event: the server asks; request: the member answers
	opStatus   = "status"
	evState    = "state" // event: the network has changed
)

// message is a request, a response or an event.
type message struct {
	Op string `json:"op,omitempty"`
	// ID is that of a request, repeated in the response; 0: there is no response.
	ID    uint64 `json:"id,omitempty"`
	Error string `json:"error,omitempty"`
	Code  string `json:"code,omitempty"` // of the error; see codes

	Version int        `json:"version,omitempty"` // join
	Name    string     `json:"name,omitempty"`    // join: the program
	Addr    netip.Addr `json:"addr,omitzero"`     // join, socket, close
	Src     netip.Addr `json:"src,omitzero"`      // resolve
	Dst     netip.Addr `json:"dst,omitzero"`      // resolve
	Service uint64     `json:"service,omitempty"` // listen, unlisten: the service ID
	Key     uint32     `json:"key,omitempty"`     // will
	Frame   []byte     `json:"frame,omitempty"`   // will; report, response to status: a part

	Slot   uint8          `json:"slot,omitempty"` // response to join
	Net    uint64         `json:"net,omitempty"`  // response to join: cookie of the namespace
	State  *netState      `json:"state,omitempty"`
	Limits *driver.Limits `json:"limits,omitempty"` // response to join
	Hop    *driver.Hop    `json:"hop,omitempty"`
	Size   int            `json:"size,omitempty"` // of the whole report or status
}

// netState describes the network.
type netState struct {
	Info  driver.Info    `json:"info"`
	Index int            `json:"index"`
	Addrs []netip.Prefix `json:"addrs"`
}

// codes are the errors that a response can name.
var codes = map[string]error{
	"refused":   ErrRefused,
	"none":      ErrNone,
	"listening": driver.ErrListening,
	"noroute":   driver.ErrNoRoute,
	"noaddress": driver.ErrNoAddress,
	"local":     driver.ErrLocal,
	"down":      driver.ErrLinkDown,
	"gone":      driver.ErrGone,
	"busy":      driver.ErrBusy,
	"closed":    driver.ErrServiceEnded,
	"timeout":   context.DeadlineExceeded,
}

// fail makes m the response to a request that has failed.
func (m *message) fail(err error) {
	m.Error = err.Error()
	if errors.Is(err, unix.EMFILE) { // the program would take it for its own limit
		m.Error = "raise the limit of open files of the service (ulimit -n): " + m.Error
	}
	for code, e := range codes {
		if errors.Is(err, e) {
			m.Code = code
		}
	}
}

// failure is an error of the server.
type failure struct {
	text string
	kind error
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.kind }

// err returns the error of a response.
func (m *message) err() error {
	if m.Error == "" {
		return nil
	}
	kind := codes[m.Code]
	if kind == nil {
		return errors.New(m.Error)
	}
	return &failure{m.Error, kind}
}

// refuse returns an error that wraps ErrRefused.
func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}
