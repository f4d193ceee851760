package xdp

import "errors"

// Errors of Open. The returned error wraps one of them and says what was found and what to do.
var (
	// ErrNoInterface means that the network namespace has no interface of that name.
	ErrNoInterface = errors.New("no such interface")
	// ErrNoAddress means that the interface has no usable IP address and therefore no GID.
	ErrNoAddress = errors.New("interface has no IP address")
	// ErrLinkDown means that the interface is down. Send also returns it.
	ErrLinkDown = errors.New("interface is down")
	// ErrBusy means that the interface has another XDP program, or that another AF_XDP socket uses
	// one of its queues.
	ErrBusy = errors.New("interface is in use")
	// ErrPermission means that a capability is missing.
	ErrPermission = errors.New("no permission for AF_XDP")
	// ErrMTUTooSmall means that the interface MTU is too small for path MTU 256.
	ErrMTUTooSmall = errors.New("MTU too small for RoCEv2")
	// ErrUnsupported means that the kernel or the driver does not support what was requested.
	ErrUnsupported = errors.New("not supported")
	// ErrOptions means that a field of Options is out of range.
	ErrOptions = errors.New("invalid xdp options")
)

// Errors of an open Port.
var (
	// ErrClosed means that the Port was closed.
	ErrClosed = errors.New("AF_XDP port is closed")
	// ErrGone means that the interface was removed while the Port was open. Close the Port.
	ErrGone = errors.New("interface was removed")
)

// Errors of Resolve.
var (
	// ErrNoRoute means that no route to the address uses the interface.
	ErrNoRoute = errors.New("no route over this interface")
	// ErrNoNeighbor means that the peer, or the gateway to it, did not answer ARP or neighbor
	// discovery.
	ErrNoNeighbor = errors.New("no answer to ARP or neighbor discovery")
	// ErrLocal means that the address belongs to this host, so that frames to it never leave the
	// host.
	ErrLocal = errors.New("address belongs to this host")
)
