package roce

import (
	"errors"
	"fmt"

	"github.com/gorxe/gorxe/bth"
	"github.com/gorxe/gorxe/driver"
	"github.com/gorxe/gorxe/mr"
	"github.com/gorxe/gorxe/qp"
	"github.com/gorxe/gorxe/roce/cm"
	"github.com/gorxe/gorxe/xdp"
)

// The errors of this package. Methods wrap them with details; test for them with errors.Is.
var (
	// ErrClosed: the Device or the object was closed before or during the call.
	ErrClosed = errors.New("roce: closed: open the device or create the object again")
	// ErrGone: the network interface was removed, or the Port was closed, while the Device was
	// open. See Device.Err.
	ErrGone = errors.New("roce: the network interface is gone: " +
		"close the device, and open one on an interface that exists")
	// ErrServiceEnded: the node service that the Device had joined ended while the Device was open.
	// All QPs are in StateErr, and their work requests complete with WRFlushErr.
	ErrServiceEnded = errors.New("roce: the node service of this device has ended: " +
		"close the device, and open it again when the service is back (OpenService)")
	// ErrMemoryFault: an access to a registered region failed, for example because it is a mapped
	// file that was truncated. The Device has stopped; see Device.Err.
	ErrMemoryFault = errors.New("roce: the device has stopped: " +
		"close it, and open it again with memory that stays accessible")
	// ErrInUse: other objects depend on the object.
	ErrInUse = errors.New("roce: still in use: " +
		"close the objects that depend on it first, or close the device")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = errors.New("roce: invalid argument")
	// ErrForeign: an argument belongs to another Device.
	ErrForeign = qp.ErrForeign
	// ErrNoMemory: the object would exceed Limits.Memory, Expert.MaxMemory, or the process's share
	// of the machine's memory.
	ErrNoMemory = errors.New("roce: not enough memory: create fewer or shorter queues, " +
		"or raise Expert.MaxMemory or the limit of WithLimits or of the node service")
	// ErrTooMany: Expert.MaxPD, Expert.MaxMR or Limits.MRs is reached.
	ErrTooMany = mr.ErrTooMany
	// ErrTooManyQPs: Expert.MaxQP or Limits.QPs is reached.
	ErrTooManyQPs = qp.ErrTooManyQPs
	// ErrInvalidDepth: the depth of a queue is out of range.
	ErrInvalidDepth = qp.ErrInvalidDepth
	// ErrClass: a traffic class is out of range.
	ErrClass = errors.New("roce: no such traffic class: choose 0 to 7")
	// ErrClassMap: a DSCP or PCP in a ClassMap is out of range.
	ErrClassMap = errors.New("roce: invalid class map: a DSCP is 0 to 63, a PCP 0 to 7")
	// ErrPKey: a P_Key is not valid, or names a partition that the Device or the peer is not in.
	ErrPKey = errors.New("roce: wrong P_Key")
	// ErrPrefetch: Expert.Prefetch or the argument of SetPrefetch is out of range.
	ErrPrefetch = qp.ErrPrefetch
	// ErrVirtualTime: the call would need to wait, which a device with Expert.Clock cannot do
	// without Expert.Wait.
	ErrVirtualTime = errors.New("roce: the device has its own clock (Expert.Clock): " +
		"set Expert.Wait, for example to loopback.Sim.Wait, " +
		"or call Device.Progress and CQ.Poll instead of waiting")
)

// Errors of Open and New.
var (
	// ErrPortInUse: another Device uses the Port, or another program UDP port 4791.
	ErrPortInUse = errors.New("roce: another device uses this port: " +
		"close that device, or create one port for each device")
	// ErrNoInterface: there is no interface of that name.
	ErrNoInterface = xdp.ErrNoInterface
	// ErrNoAddress: the interface has no usable IP address.
	ErrNoAddress = xdp.ErrNoAddress
	// ErrLinkDown: the interface is down.
	ErrLinkDown = xdp.ErrLinkDown
	// ErrBusy: another XDP program or AF_XDP socket uses the interface.
	ErrBusy = xdp.ErrBusy
	// ErrPermission: the process lacks a capability.
	ErrPermission = xdp.ErrPermission
	// ErrMTUTooSmall: the MTU of the interface is too small for path MTU 256.
	ErrMTUTooSmall = xdp.ErrMTUTooSmall
	// ErrUnsupported: the kernel or the driver lacks a feature that XDPOptions demand, or the
	// operating system is not Linux.
	ErrUnsupported = xdp.ErrUnsupported
	// ErrXDPOptions: a field of XDPOptions is out of range.
	ErrXDPOptions = xdp.ErrOptions
	// ErrNoService: no node service answers at the path.
	ErrNoService = driver.ErrNoService
	// ErrServiceRefused: the node service refuses the program, for example because its user has too
	// many programs. The error says why.
	ErrServiceRefused = driver.ErrServiceRefused
	// ErrNoNetwork: the Port does not implement Network, and Expert.Network is not set.
	ErrNoNetwork = errors.New("roce: the port does not implement Network: set Expert.Network")
)

// Errors of memory regions, windows and fast regions.
var (
	// ErrMemoryLength: the region has no bytes, is longer than its FastMR allows, or reaches past
	// the last address.
	ErrMemoryLength = mr.ErrLength
	// ErrMemoryAlign: RemoteAtomic needs an address (WithIOVA) that equals the memory's address
	// modulo 8.
	ErrMemoryAlign = mr.ErrAlign
	// ErrMemoryAccess: the access rights contradict each other, or do not fit the kind of object.
	ErrMemoryAccess = mr.ErrAccess
	// ErrKeysExhausted: the device has used all 2^32 keys; open it again.
	ErrKeysExhausted = mr.ErrExhausted
)

// Errors of posting and of queues. PostError adds how many work requests were posted.
var (
	// ErrSQFull: the send queue is full; poll completions first, or raise QPConfig.SendDepth.
	ErrSQFull = qp.ErrSQFull
	// ErrRQFull: the receive queue or SRQ is full.
	ErrRQFull = qp.ErrRQFull
	// ErrQPState: the QP is in the wrong state, or the transition does not exist.
	ErrQPState = qp.ErrQPState
	// ErrInvalidWR: the work request contradicts itself, the type of the QP or its limits.
	ErrInvalidWR = qp.ErrInvalidWR
	// ErrWRLength is an ErrInvalidWR: the operation, or the path MTU for UD, forbids the length.
	ErrWRLength = qp.ErrWRLength
	// ErrInvalidKey: an SGE names memory that its L_Key does not cover, or that lacks a right.
	ErrInvalidKey = qp.ErrInvalidKey
	// ErrHasSRQ: PostRecv on a QP that has an SRQ.
	ErrHasSRQ = qp.ErrHasSRQ
	// ErrInvalidAttr: an attribute of a QP is missing, unexpected or out of range.
	ErrInvalidAttr = qp.ErrInvalidAttr
	// ErrCQOverrun: the CQ was too small for its completions, and some are lost.
	ErrCQOverrun = errors.New("roce: completion queue overrun, completions are lost: " +
		"create it large enough for all outstanding work requests")
)

// Errors of addresses and paths.
var (
	// ErrNoGID: the interface has no address with the GID index, or none at all.
	ErrNoGID = errors.New("roce: no such GID: " +
		"add an address (ip addr add) or choose an index listed by Device.GIDs")
	// ErrFamily: one GID is IPv4, the other is IPv6.
	ErrFamily = errors.New("roce: the GIDs have different IP versions: " +
		"choose GIDs of one IP version on both sides")
	// ErrUnreachable: the next hop to the peer was not found. ErrNoRoute, ErrNoNeighbor or
	// ErrLocalAddress may say why.
	ErrUnreachable = errors.New("roce: peer not reachable: " +
		"check its address and the route, and that it answers ping")
	// ErrNoRoute: no route to the peer leads over the interface.
	ErrNoRoute = xdp.ErrNoRoute
	// ErrNoNeighbor: the peer or its gateway did not answer ARP or neighbor discovery.
	ErrNoNeighbor = xdp.ErrNoNeighbor
	// ErrLocalAddress: the address belongs to this host.
	ErrLocalAddress = xdp.ErrLocal
	// ErrMTU: no path MTU fits the interface and the route, or the one in a peer's connection
	// request is too large.
	ErrMTU = errors.New("roce: no RoCE path MTU fits: " +
		"raise the MTU of the interface to at least 336 (1104 for path MTU 1024)")
	// ErrNotMulticast: the address is not a multicast address.
	ErrNotMulticast = qp.ErrNotMulticast
	// ErrGroupsFull: too many multicast groups, or too many QPs in one.
	ErrGroupsFull = qp.ErrGroupsFull
	// ErrNotAttached: the QP is not attached to the multicast group.
	ErrNotAttached = qp.ErrNotAttached
)

// Errors of connections (Dial, Listen, Accept).
var (
	// ErrRefused: the peer refused the connection. The error is a *RejectError.
	ErrRefused = errors.New("roce: connection refused")
	// ErrNoAnswer: the peer's connection manager does not answer, or its program neither accepts
	// nor rejects the request.
	ErrNoAnswer = errors.New("roce: no answer from the peer's connection manager: " +
		"check that RDMA runs there, that no firewall drops UDP port 4791, " +
		"and that the program there accepts connections")
	// ErrDisconnected: the peer ended the connection.
	ErrDisconnected = errors.New("roce: disconnected by the peer: dial again")
	// ErrConnLost: the QP of the connection went to the error state. A wrapped *StatusError says
	// why, if a work request failed or the peer did not answer keepalives.
	ErrConnLost = errors.New("roce: connection lost because its QP went to the error state")
	// ErrKeepAlive: the peer did not answer keepalives. It comes with ErrConnLost.
	ErrKeepAlive = errors.New("roce: the peer did not answer keepalives " +
		"(see ConnectOptions.KeepAlive)")
	// ErrRequestOver: the peer stopped waiting before its request was answered.
	ErrRequestOver = errors.New("roce: the peer no longer waits for an answer to this request: " +
		"answer sooner")
	// ErrAnswered: the request was answered before.
	ErrAnswered = errors.New("roce: the request is answered already: " +
		"call one of Accept, Reject and AnswerUD, once")
	// ErrReason: RejectWith was given a reason that only the connection manager may use.
	ErrReason = errors.New("roce: not a reason for applications: " +
		"use RejectConsumer, RejectNoListener or RejectNoQP, " +
		"or for connections RejectNoResources or RejectUnsupported")
	// ErrIgnore is for ListenOptions.Admit: it discards the request without an answer.
	ErrIgnore = errors.New("roce: request ignored")
	// ErrPrivateData: the private data is longer than the message allows.
	ErrPrivateData = cm.ErrPrivateData
	// ErrConnParams: an option of a connection is out of range.
	ErrConnParams = cm.ErrParams
	// ErrConnState: the connection is in the wrong state for the call.
	ErrConnState = cm.ErrState
	// ErrTooManyConns: the device has too many connections.
	ErrTooManyConns = cm.ErrTooMany
	// ErrListening: another listener has the address and port. A listener on all addresses and one
	// on a single address may have the same port; the latter gets the requests to its address.
	ErrListening = cm.ErrListening
	// ErrTooManyListeners: the device has too many listeners.
	ErrTooManyListeners = cm.ErrTooManyListen
)

// PostError reports that only a part of a list of work requests was posted: the first Posted ones
// were, and the next one failed with Err (bad_wr of ibv_post_send).
type PostError struct {
	Posted int
	Err    error
}

// Error returns the message.
func (e *PostError) Error() string {
	return fmt.Sprintf("roce: work request %d failed, those before it are posted: %v", e.Posted,
		e.Err)
}

// Unwrap returns Err.
func (e *PostError) Unwrap() error { return e.Err }

// postError returns err itself if no work request was posted, so that a full queue costs no
// allocation.
func postError(n int, err error) error {
	if err == nil || n == 0 {
		return err
	}
	return &PostError{Posted: n, Err: err}
}

// mtuError is the ErrMTU of a connection request that asks for more than the local interface
// supports.
type mtuError struct{ asked, ours bth.MTU }

func (e *mtuError) Error() string {
	return fmt.Sprintf("roce: the peer asks for path MTU %d, but this side supports at most %d: "+
		"the peer was notified and may send another request, which can be accepted", int(e.asked),
		int(e.ours))
}

func (e *mtuError) Is(target error) bool { return target == ErrMTU }
