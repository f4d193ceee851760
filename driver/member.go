package driver

// Member is an optional interface of a Port that belongs to a node service, by which several
// programs share the addresses and UDP port 4791 of an interface. Each program has a slot, and its
// QPNs, communication IDs and SIDR request IDs have the slot in their top byte, so that packets can
// be assigned to programs by their headers alone.
//
// All methods are safe for concurrent use. They must not wait for the owner of the Port.
type Member interface {
	// Slot returns the slot, 1 to 254; 0 is the slot of the service's own device.
	Slot() uint8

	// Listen makes the service pass connection requests and SIDR requests with a service ID to this
	// Port. It returns an error that wraps ErrListening if another program listens on the ID, and
	// ErrServiceEnded if the service has ended.
	Listen(id uint64) error

	// Unlisten ends a call of Listen.
	Unlisten(id uint64)

	// Will gives the service a frame that it sends when the program ends without closing the Port,
	// such as the disconnect request (DREQ) of a connection. key identifies it; nil removes the
	// frame of a key. The frame is as for Port.Send, and is copied. The number of frames is
	// limited; further ones are ignored.
	Will(key uint32, frame []byte)
}

// Limits limit what a program may use of a device. 0 means no limit.
type Limits struct {
	QPs int `json:"qps,omitempty"` // queue pairs
	MRs int `json:"mrs,omitempty"` // memory regions and windows
	// Memory limits the bytes of registered memory, queues and queue pairs together.
	Memory uint64 `json:"memory,omitempty"`
	// Rate limits what is sent, in bytes of frames per second from the Ethernet header to the ICRC.
	Rate uint64 `json:"rate,omitempty"`
}

// Limited is an optional interface of a Port whose node service limits the programs that use it.
type Limited interface {
	// Limits returns the limits, which do not change.
	Limits() Limits
}

// MaxSlot is the largest slot of a Member. The QPN of multicast packets begins with 255.
const MaxSlot = 254
