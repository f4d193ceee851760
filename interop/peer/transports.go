package peer

import "github.com/gorxe/gorxe/interop/guest"

// The peers of the transports, for StartTransport.
const (
	Indirect      = "indirect-peer"
	RFTP          = "rftp-peer"
	SlidingWindow = "slidingwindow-peer"
	StatusByte    = "statusbyte-peer"
)

// StartTransport starts the peer of a transport in a guest. Its source describes the commands.
func StartTransport(vm *guest.VM, name string) (*Peer, error) { return start(vm, "/usr/bin/"+name) }
