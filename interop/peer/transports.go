package peer

import "github.com/gorxe/gorxe/interop/guest"

// The peers of package transport's, as StartTransport takes them.
const (
	Indirect      = "indirect-peer"
	SlidingWindow = "slidingwindow-peer"
	StatusByte    = "statusbyte-peer"
)

// StartTransport starts the peer of a transport in a guest. Its commands stand in its source.
func StartTransport(vm *guest.VM, name string) (*Peer, error) { return start(vm, "/usr/bin/"+name) }
