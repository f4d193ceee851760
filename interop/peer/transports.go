package peer

import (
	_ "embed" // the C sources

	"github.com/gorxe/gorxe/interop/guest"
)

//go:embed src/indirect-peer.c
var indirectSource []byte

//go:embed src/statusbyte-peer.c
var statusByteSource []byte

// The peers of transport/indirect and transport/statusbyte, as StartTransport takes them.
const (
	Indirect   = "indirect-peer"
	StatusByte = "statusbyte-peer"
)

// Transports are the C sources of the transports' peers, by the names that they have in the guest.
var Transports = map[string][]byte{Indirect: indirectSource, StatusByte: statusByteSource}

// StartTransport starts the peer of a transport in a guest. Its commands stand in its source.
func StartTransport(vm *guest.VM, name string) (*Peer, error) { return start(vm, "/usr/bin/"+name) }
