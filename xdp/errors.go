package xdp

import (
	"errors"

	"github.com/gorxe/gorxe/driver"
)

// Errors of Open. The returned error wraps one of them and says what was found and what to do.
var (
	// ErrNoInterface means that the network namespace has no interface of that name.
	ErrNoInterface = driver.ErrNoInterface
	// ErrNoAddress means that the interface has no usable IP address and therefore no GID.
	ErrNoAddress = driver.ErrNoAddress
	// ErrLinkDown means that the interface is down. Send also returns it.
	ErrLinkDown = driver.ErrLinkDown
	// ErrBusy means that the interface has another XDP program, or that another AF_XDP socket uses
	// one of its queues.
	ErrBusy = driver.ErrBusy
	// ErrPermission means that a capability is missing.
	ErrPermission = errors.New("no permission for AF_XDP")
	// ErrMTUTooSmall means that the interface MTU is too small for path MTU 256.
	ErrMTUTooSmall = driver.ErrMTUTooSmall
	// ErrUnsupported means that the kernel or the driver does not support what was requested.
	ErrUnsupported = driver.ErrUnsupported
	// ErrOptions means that a field of Options is out of range.
	ErrOptions = errors.New("invalid xdp options")
)

// Errors of an open Port.
var (
	// ErrClosed means that the Port was closed.
	ErrClosed = driver.ErrClosed
	// ErrGone means that the interface was removed while the Port was open. Close the Port.
	ErrGone = driver.ErrGone
)

// Errors of Resolve.
var (
	// ErrNoRoute means that no route to the address uses the interface.
	ErrNoRoute = driver.ErrNoRoute
	// ErrNoNeighbor means that the peer, or the gateway to it, did not answer ARP or neighbor
	// discovery.
	ErrNoNeighbor = errors.New("no answer to ARP or neighbor discovery")
	// ErrLocal means that the address belongs to this host, so that frames to it never leave the
	// host.
	ErrLocal = driver.ErrLocal
)
