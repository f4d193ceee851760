package roce

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/bth"
)

// The errors of this package. Those of the packages below are wrapped, so errors.Is finds qp.ErrSQFull,
// mr.ErrBusy, xdp.ErrNoInterface and the like too.
var (
	// ErrClosed: the Device or the object was closed before or during the call.
	ErrClosed = errors.New("roce: closed: open the device, or create the object, again")
	// ErrInUse: other objects still depend on this one.
	ErrInUse = errors.New("roce: still in use: close the objects that depend on it first, or the whole device")
	// ErrCQOverrun: more completions came than the CQ could hold; some are lost for good.
	ErrCQOverrun = errors.New("roce: completion queue overrun, completions are lost: create it with room for all work requests that may be outstanding")
	// ErrNoGID: the GID index names no address of the interface.
	ErrNoGID = errors.New("roce: no such GID: give the interface an address (ip addr add), or choose an index that Device.GIDs lists")
	// ErrFamily: one end's GID is IPv4, the other's is IPv6.
	ErrFamily = errors.New("roce: the two GIDs are of different IP versions: choose GID indexes of one version on both ends")
	// ErrUnreachable: the peer's address could not be resolved to a neighbour.
	ErrUnreachable = errors.New("roce: peer not reachable: check its address, the route, and that it answers ping")
	// ErrMTU: no path MTU fits the way to the peer, or the one that a peer asks for in a connection request does not.
	ErrMTU = errors.New("roce: no RoCE path MTU fits: raise the interface's MTU to 336 or more (1104 for path MTU 1024)")
	// ErrForeign: an object of another Device was given.
	ErrForeign = errors.New("roce: the object belongs to another device: use objects of one device together")
	// ErrNoMemory: queues or AllocMR would take more memory than Expert.MaxMemory allows, or than the machine can spare.
	ErrNoMemory = errors.New("roce: not enough memory; make fewer or shorter queues, or raise the limit by Expert.MaxMemory")
	// ErrInvalid: an argument is out of its range.
	ErrInvalid = errors.New("roce: invalid argument")
	// ErrVirtualTime: CQ.Wait cannot move a clock that the caller owns.
	ErrVirtualTime = errors.New("roce: the device runs on the caller's clock (Expert.Clock): drive it by Device.Progress and CQ.Poll, not by Wait")
	// ErrNoNetwork: New got a Port that knows no addresses.
	ErrNoNetwork = errors.New("roce: the port knows neither addresses nor neighbours: set Expert.Network")
)

// PostError says that a list of work requests was posted in part: the first Posted of them are on their way, the
// next one was refused with Err (verbs' bad_wr).
type PostError struct {
	Posted int
	Err    error
}

func (e *PostError) Error() string {
	return fmt.Sprintf("roce: work request %d of the list was refused (those before it are posted): %v", e.Posted, e.Err)
}

func (e *PostError) Unwrap() error { return e.Err }

// postError keeps the common case free of allocation: a single work request refused gives the bare sentinel.
func postError(n int, err error) error {
	if err == nil || n == 0 {
		return err
	}
	return &PostError{Posted: n, Err: err}
}

// mtuError is ErrMTU of a connection request: this end's interface is well, but carries less than the peer asks for.
type mtuError struct{ asked, ours bth.MTU }

func (e *mtuError) Error() string {
	return fmt.Sprintf("roce: the peer asks for path MTU %d, but %d is the most that fits here: it was told so and may ask again with that;"+
		" accept its next request", int(e.asked), int(e.ours))
}

func (e *mtuError) Is(target error) bool { return target == ErrMTU }
