package perftest

import "errors"

// The errors of this package.
var (
	// ErrGarbage means that the peer speaks another protocol.
	ErrGarbage = errors.New("the peer does not speak perftest's protocol: " +
		"check that the port belongs to a perftest program (such as ib_write_bw) or to gorxe")
	// ErrVersion means that the peer's perftest is too old.
	ErrVersion = errors.New("the peer's perftest is too old: use version 5.70 or newer")
	// ErrProtocol means that a message was not expected or has values out of range.
	ErrProtocol = errors.New("the peer violated perftest's protocol")
	// ErrNoGID means that the peer sent a LID only, as on InfiniBand.
	ErrNoGID = errors.New("the peer sent no GID: start it with a GID index (-x)")
	// ErrTimeout means that no complete message arrived in time.
	ErrTimeout = errors.New("the peer does not answer in perftest's protocol")
	// ErrGone means that the peer closed the connection.
	ErrGone = errors.New("the peer closed the connection")
)
