package driver

import "errors"

// Errors of opening a Port on a network interface. The returned error wraps one of them and says
// what was found and what to do.
var (
	// ErrNoInterface means that the network namespace has no interface of that name.
	ErrNoInterface = errors.New("no such interface")
	// ErrNoAddress means that the interface has no usable IP address and therefore no GID.
	ErrNoAddress = errors.New("interface has no IP address")
	// ErrLinkDown means that the interface is down. Send also returns it.
	ErrLinkDown = errors.New("interface is down")
	// ErrBusy means that something else uses what the Port needs: an XDP program or an AF_XDP
	// socket the interface, or another socket the UDP port.
	ErrBusy = errors.New("interface is in use")
	// ErrMTUTooSmall means that the interface MTU is too small for path MTU 256.
	ErrMTUTooSmall = errors.New("MTU too small for RoCEv2")
	// ErrUnsupported means that the operating system, the kernel or the network driver does not
	// support what was requested.
	ErrUnsupported = errors.New("not supported")
)

// Errors of an open Port.
var (
	// ErrClosed means that the Port was closed.
	ErrClosed = errors.New("port is closed")
	// ErrGone means that the interface was removed while the Port was open. Close the Port.
	ErrGone = errors.New("interface was removed")
	// ErrServiceEnded means that the node service to which the Port belongs has ended, or has
	// closed the connection to this program. Wait returns it. Close the Port.
	ErrServiceEnded = errors.New("the connection to the node service has ended")
)

// Errors of joining a node service.
var (
	// ErrNoService means that no service answers at the path, or that its socket may not be opened.
	ErrNoService = errors.New("no node service")
	// ErrServiceRefused means that the service has refused the program.
	ErrServiceRefused = errors.New("the node service refuses this program")
)

// Errors of Member.Listen.
var (
	// ErrListening means that another program listens on the service ID.
	ErrListening = errors.New("another program listens on this port")
)

// Errors of Network.Resolve.
var (
	// ErrNoRoute means that no route leads to the address.
	ErrNoRoute = errors.New("no route over this interface")
	// ErrLocal means that the address belongs to the Port itself, or to this host and the Port
	// cannot send to it.
	ErrLocal = errors.New("address belongs to this host")
)
