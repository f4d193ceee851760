package xdp

import "errors"

// Why Open refuses an interface. The error that Open returns wraps one of these and
// says what was found and what to do.
var (
	// ErrNoInterface: there is no interface of that name in the network namespace.
	ErrNoInterface = errors.New("no such interface")
	// ErrNoAddress: the interface has no usable IP address, so it has no GID.
	ErrNoAddress = errors.New("interface has no IP address")
	// ErrLinkDown: the interface is not up. Also what Send returns while it is down.
	ErrLinkDown = errors.New("interface is down")
	// ErrBusy: the interface carries another XDP program, or another AF_XDP socket
	// holds one of its queues.
	ErrBusy = errors.New("interface is taken")
	// ErrPermission: a capability is missing.
	ErrPermission = errors.New("no permission for AF_XDP")
	// ErrMTUTooSmall: not even path MTU 256 fits the interface's MTU.
	ErrMTUTooSmall = errors.New("MTU too small for RoCEv2")
	// ErrUnsupported: the kernel or the driver cannot do what was asked.
	ErrUnsupported = errors.New("not supported")
	// ErrOptions: a field of Options is out of range.
	ErrOptions = errors.New("bad xdp options")
)

// What a Port that was open says.
var (
	// ErrClosed: the Port was closed.
	ErrClosed = errors.New("AF_XDP port is closed")
	// ErrGone: the interface was removed while the Port was open. Close it.
	ErrGone = errors.New("interface was removed")
)

// Why Resolve finds no way to a peer.
var (
	// ErrNoRoute: no route to the address leads over this interface.
	ErrNoRoute = errors.New("no route over this interface")
	// ErrNoNeighbour: the peer, or the gateway to it, did not answer ARP or
	// neighbour discovery.
	ErrNoNeighbour = errors.New("no answer to ARP or neighbour discovery")
	// ErrLocal: the address is this host's own; no frame for it leaves on the wire.
	ErrLocal = errors.New("address is this host's own")
)
