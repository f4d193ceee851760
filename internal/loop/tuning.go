package loop

import (
	"time"

	"github.com/gorxe/gorxe/qp"
)

// Batches.
const (
	rxBatch       = 64 // frames that a step receives at most, and the rest of a run
	txBatch       = 72 // packets sent between two polls of the receive ring; a block of rftp has 65
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

	longSpin    = 8                     // factor on the spin time while packets get lost
	minSleep    = 5 * time.Millisecond  // shortest sleep while nothing gets lost
	stallSleep  = 50 * time.Microsecond // longest sleep without a transmit buffer
	lockPause   = 10 * time.Microsecond // between two attempts to take the lock
	failedSleep = 10 * time.Millisecond // longest sleep when the port does not work any more
	// heldSpin is how long an owner spins, if it spins at all, while packets wait for the backlog.
	// After a sleep of less than that it would be late, and the link would be idle meanwhile.
	heldSpin       = 100 * time.Microsecond
	yieldEvery     = 16                    // calls of Yield until one of them yields
	simulatedPause = 10 * time.Microsecond // of Yield in simulated time
)

// With a Guest.
const (
	guestYield    qp.Time = 4_000_000 // ns between two calls of Go's scheduler
	lingerTime    qp.Time = 8_000     // ns for which the owner waits for an answer; see lingers
	maxLingerSkip         = 255       // messages for which it does not
	manyBytes             = 16 << 10  // sent in a step, from which on the owner continues at once
)

// Limits of the backlog; see bound.
const (
	highFrames        = 4  // of the highest class, in frames, if the rate of the port is known
	highFramesUnknown = 64 // otherwise

	backlogPoll qp.Time = 5_000       // ns between two looks if the rate is not known
	stuckTime   qp.Time = 100_000_000 // ns after which bytes that do not move are ignored
)

// Receive coalescing; see coalescer.
const (
	coalesceTime       qp.Time = 4_000 // ns for which the receive ring is left alone
	coalesceQuiet              = 128   // packets of a stream before coalescing starts
	coalesceAckGap             = 32    // packets between requests for ACKs; a peer with fewer waits
	coalesceBackground qp.Time = 1_000 // ns between two runs of all other work meanwhile
)
