package peer

import (
	_ "embed" // the C sources

	"github.com/gorxe/gorxe/interop/guest"
)

//go:embed src/indirect-peer.c
var indirectSource []byte

// Indirect is the peer of transport/indirect, as StartTransport takes it.
const Indirect = "indirect-peer"

// Transports are the C sources of the transports' peers, by the names that they have in the guest.
var Transports = map[string][]byte{Indirect: indirectSource}

// StartTransport starts the peer of a transport in a guest. Its commands stand in its source.
func StartTransport(vm *guest.VM, name string) (*Peer, error) { return start(vm, "/usr/bin/"+name) }
