package loop

import (
	"time"

	"github.com/gorxe/gorxe/qp"
)

// Batches.
const (
	rxBatch       = 64 // frames that a step receives at most
	txBatch       = 64 // packets sent between two polls of the receive ring
	minTxBuffers  = 16 // with fewer free transmit buffers the loop allocates more
	minPrefetch   = 4  // frames in a batch from which on prefetching pays
	maxPostponed  = 8  // consecutive receiving steps that leave out the background work
	eventsPerStep = 16 // asynchronous events passed to the host in one step
	idlePolls     = 8  // polls of the receive ring in one step of an idle loop
)

// Spinning and sleeping.
const (
	// DefaultSpin is how long an idle owner spins before it blocks. A wake-up costs about as much.
	DefaultSpin = 20 * time.Microsecond
	// AutoSpin selects DefaultSpin, or 0 while the process has at least as many progress goroutines
	// as cores.
	AutoSpin = time.Duration(-1)

	longSpin       = 8                     // factor while packets get lost or a stream pauses
	minSleep       = 5 * time.Millisecond  // shortest sleep while nothing gets lost
	stallSleep     = 50 * time.Microsecond // longest sleep without a transmit buffer
	lockPause      = 10 * time.Microsecond // between two attempts to take the lock
	portErrorPause = time.Millisecond      // after an error of Port.Wait
)

// Receive coalescing; see coalescer. Times are in nanoseconds.
const (
	coalesceTime       qp.Time = 16_000 // upper limit
	coalesceShort      qp.Time = 4_000  // upper limit if someone may wait for the message
	coalesceOneWay     qp.Time = 8_000  // in a one-way stream of small WRITEs
	coalescePerFrame   qp.Time = 125    // upper limit for each frame of the stream so far
	coalescePackets            = 16     // packets to wait for at most
	coalesceEnough             = 16     // a batch of this size needs no coalescing
	coalesceBackground qp.Time = 1000   // interval of all other work while the ring is left alone

	streamGap    qp.Time = 64_000 // a pause of this length ends a stream
	burstGap     qp.Time = 8_000  // a pause of this length ends a burst
	streamFrames         = int(coalesceTime / coalescePerFrame)

	undisturbedEnough = 8 // long messages in a row after which the program does not wait
	askedEnough       = 2 // messages in a row with a request for an ACK: the peer waits

	oneWayWrites   = 128 // small WRITEs without a local post that make a one-way stream
	oneWayUnasked  = 8   // small WRITEs without a request for an ACK, likewise
	oneWayFrames   = 3   // frames that a wait has to bring to be worth it
	oneWayFailures = 3   // tolerated waits in a row that are not worth it
)
