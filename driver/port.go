package driver

import (
	"time"

	"github.com/gorxe/gorxe/bth"
)

// Port sends and receives Ethernet frames, each from the destination MAC to the ICRC, without
// preamble and FCS.
//
// One goroutine at a time owns a Port. Only the owner calls its methods, except Wake and Close,
// which are safe for concurrent use.
type Port interface {
	// Info describes the port. The MTU, the link state and the note may change while it is open.
	Info() Info

	// Receive stores up to len(bufs) received frames in bufs and returns their number. It does not
	// block. Each frame is contiguous. The owner may modify it and must return it with Release.
	Receive(bufs []Buf) int

	// Release returns buffers from Receive, in any order and number. Their bytes must not be
	// accessed afterwards.
	Release(bufs []Buf)

	// Alloc stores up to len(bufs) send buffers in bufs and returns their number. The length of B
	// is Info().MaxFrame; the capacity may be larger. The owner must return each buffer with Send
	// or Free.
	Alloc(bufs []Buf) int

	// Send sends frames in order and returns how many it put on the wire, each packet of a run
	// being one. The owner shortens each B to the length of its frame, without moving its start.
	// Send takes all buffers, even if it returns an error, and drops frames that it cannot send. It
	// returns an error if the port is closed or the interface is down, not for single frames.
	Send(bufs []Buf) (n int, err error)

	// Free returns buffers from Alloc that will not be sent.
	Free(bufs []Buf)

	// Wait blocks until a frame may be ready, Wake is called, or d has passed. If d is negative,
	// there is no time limit. It may return early. It returns an error if the port is closed or
	// its interface was removed.
	Wait(d time.Duration) error

	// Wake makes the current Wait return, or the next one if there is none. It is cheap.
	Wake()

	// Close stops the port and releases its resources. Buffers that the owner holds remain
	// accessible until it returns them. Close is idempotent.
	Close() error
}

// Buf is a buffer with one frame, or with a run (NoHeaders). The memory belongs to the Port, which
// lends it to the owner.
type Buf struct {
	B     []byte // the frame, or the packets of the run
	Token uint64 // identifies the buffer to the Port; must be returned unchanged
	Size  int    // of each packet of a run, bytes; see NoHeaders
}

// Packets returns the number of packets in b.
func (b *Buf) Packets() int {
	if b.Token&NoHeaders == 0 {
		return 1
	}
	return (len(b.B) + b.Size - 1) / b.Size
}

// Info describes a Port.
type Info struct {
	Name     string // interface name
	Datapath string // "afxdp-native", "afxdp-generic", "afxdp-zerocopy", "udp" or "memory"
	MAC      bth.MAC
	MTU      int    // largest IP packet, bytes
	MaxFrame int    // largest Ethernet frame, bytes
	Up       bool   // the link is up
	VLAN     uint16 // ID of the VLAN whose frames the port carries; 0 = untagged
	Queues   int    // receive queues served
	Note     string // advice for the user about the mode or MTU, or ""

	// SourcePort, if it is not 0, says that the port is a UDP socket bound to this UDP port, so
	// that the kernel writes the Ethernet, IP and UDP headers. Frames have headers all the same.
	// The port passes the addresses, the traffic class and the hop limit of sent frames to the
	// kernel, which sends this source port, and over IPv4 DF and identification 0. The ICRC must be
	// computed with these values. The headers of received frames are made up from what the kernel
	// reports. It does not report the identification, which is 0 in the headers.
	SourcePort uint16
	// ReceiveBuffer is how many bytes of received packets the kernel keeps for the port, with the
	// kernel's overhead for each packet; 0: not known, or enough.
	ReceiveBuffer int
	// Runs says that the port receives runs of packets: several packets of one flow that the kernel
	// carries as one super-frame of up to 64 KiB (UDP_SEGMENT, GRO). The port splits them into
	// frames, except for an owner that has called Overlapper.OverlapHeaders.
	Runs bool
	// Service, if it is not "", is the path of the socket of the node service to which the port
	// belongs; see Member.
	Service string
}

// Holder is an optional interface of a Port. It lets the owner announce that several calls follow,
// so that the port need not check in each call whether Close is in progress.
type Holder interface {
	// Hold makes Close wait until Unhold. The owner must call Unhold soon and must not call Wait
	// in between.
	Hold()
	// Unhold ends Hold.
	Unhold()
}

// Backlogger is an optional interface of a Port that knows how many bytes are queued below it: in
// its rings, in the network driver, in the NIC, or on a simulated link. A device with traffic
// classes uses it to keep that queue short, so that an urgent frame does not wait behind many
// others. A device without classes does not call it.
type Backlogger interface {
	// Backlog returns the length in bytes of the frames that were passed to Send and have not left
	// the port, including the rest of the frame that is being sent. rate is the number of bits per
	// second with which they leave, so that the owner can compute when the backlog will have
	// shrunk; 0 means that it is not known. Only the owner may call Backlog. It does not block.
	Backlog() (bytes int, rate int64)
}

// Watcher is an optional interface of a Port whose Wait sleeps in the kernel. A progress goroutine
// stays on one thread for such a Port.
type Watcher interface {
	// Watch makes Wait return also when a descriptor is readable. There is one at a time; a
	// negative number ends that. Owner only.
	Watch(fd int)
	// Watched reports whether the descriptor was readable at the end of the latest sleep. Owner
	// only.
	Watched() bool
}

// Overlapper is an optional interface of a Port that receives runs of packets in one buffer,
// without headers between them. NoHeaders is set in the token of such a buffer.
type Overlapper interface {
	// OverlapHeaders permits Receive to return runs. Owner only.
	OverlapHeaders()
	// Frame writes the headers of packet i of a received run, over the end of packet i-1, and
	// returns the frame. Only the owner may call it.
	Frame(b *Buf, i int) []byte
}

// RunSender is an optional interface of a Port that sends runs of packets in one buffer. NoHeaders
// is set in the token of such a buffer, which comes from Alloc.
type RunSender interface {
	// LeastRun returns the smallest number of bytes of a run that the next call of Send accepts; 0:
	// it accepts no run. Owner only.
	LeastRun() int
}

// NoHeaders marks a run: B has packets of Size bytes, each from the BTH to the ICRC. Size is at
// least bth.MaxNetHeader if there are several.
//
// The packets of a received run have the same headers but for the length and the IPv4
// identification, which increases by 1. The last packet may be shorter.
//
// A run that is sent is in memory of the owner, which may change after Send. The packets differ
// only in PSN and payload. The PSN follows that of the packet before in the same call, and the
// headers are those of that packet but for the length. The ICRC of packet i of B is for the IPv4
// identification i.
const NoHeaders = 1 << 62

// StatsReader is an optional interface of a Port that counts frames.
type StatsReader interface {
	// Stats returns the counters. Only the owner may call it.
	Stats() Stats
}

// Stats counts frames and system calls since a Port was opened.
type Stats struct {
	RxFrames, RxBytes uint64
	TxFrames, TxBytes uint64
	RxDropped         uint64 // lost before Receive: rings full, no buffers
	TxDropped         uint64 // passed to Send but not put on the wire
	TxRuns            uint64 // runs of packets that the kernel got as one message (UDP_SEGMENT)
	Kicks             uint64 // system calls that start transmission
	Waits             uint64 // system calls that block
}
