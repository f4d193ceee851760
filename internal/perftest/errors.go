package perftest

import "errors"

// The errors of this package.
var (
	// ErrGarbage: the peer speaks something else.
	ErrGarbage = errors.New("the peer does not speak perftest's exchange: is that port an ib_write_bw's, or a gorxe's?")
	// ErrVersion: the peer is a perftest that is too old.
	ErrVersion = errors.New("the peer's perftest is too old: 5.70 or newer is needed")
	// ErrProtocol: a message that does not belong here, or with values out of range.
	ErrProtocol = errors.New("the peer broke perftest's exchange")
	// ErrNoGID: the peer addresses by LID alone, as on InfiniBand.
	ErrNoGID = errors.New("the peer names no GID: start it with a GID index (-x)")
	// ErrTimeout: nothing, or only a part, came in time.
	ErrTimeout = errors.New("the peer does not answer in perftest's exchange")
	// ErrGone: the peer closed the connection.
	ErrGone = errors.New("the peer closed the connection")
)
