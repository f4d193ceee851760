package core

import (
	"errors"
	"time"
)

// Limits of a Machine.
const (
	// MaxPriority is the highest priority; 0 is the lowest.
	MaxPriority = 63
	// MaxInputs bounds the inputs of a task.
	MaxInputs = 64
	// MaxTasks, MaxSources and MaxPools bound the objects of a machine.
	MaxTasks   = 1 << 12
	MaxSources = 1 << 13
	MaxPools   = 1 << 8
	// MaxThreshold bounds Input.Threshold.
	MaxThreshold = 1 << 20
	// MaxPeriod bounds periods, phases and deadlines.
	MaxPeriod = 24 * time.Hour

	// maxCatchUp is how many arrivals of a timer Advance handles one by one if it is called late.
	// More count at once.
	maxCatchUp = 1000
	// maxArrivals is where the count of an input stops.
	maxArrivals = 1 << 30
)

// ErrConfig means that an object cannot be added to a machine as it is described.
var ErrConfig = errors.New("invalid schedule")

// TaskID, SourceID and PoolID are indices of objects, in the order of their creation.
type (
	TaskID   int32
	SourceID int32
	PoolID   int32
)

// Input connects a task to a source.
type Input struct {
	Source SourceID
	// Threshold is the number of arrivals that satisfies the input; 0 means 1.
	Threshold int
	// Optional inputs are not needed for an activation.
	Optional bool
	// Final inputs activate the task alone, whatever the other inputs have.
	Final bool
	// Synchron inputs keep arrivals beyond the threshold for the next activation. Others start
	// again from 0 each time the task runs.
	Synchron bool
}

// Action is what happens to a task that exceeds its deadline.
type Action uint8

// The actions.
const (
	Warn  Action = iota // it continues
	Retry               // it starts over, TaskConfig.Retries times, and is then dropped
	Drop                // it ends
)

// String returns the name of the action in lower case.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "invalid"
}

var actionNames = [...]string{"warn", "retry", "drop"}

// TaskConfig describes a task.
type TaskConfig struct {
	Name     string
	Pool     PoolID
	Priority int // 0 to MaxPriority, which is the most urgent
	Inputs   []Input
	// Any activates the task when one of its inputs is satisfied, as if all were Final. Otherwise
	// all that are neither Optional nor Final must be.
	Any bool
	// Deadline is the time from the activation to the end; 0 means none.
	Deadline time.Duration
	OnLate   Action
	// Retries bounds Retry; at least 1 if OnLate is Retry.
	Retries int
	// Outputs are the sources that the task pushes. Machine.Start refuses cycles.
	Outputs []SourceID
}

// Kind is the kind of an Event.
type Kind uint8

// The kinds of events.
const (
	Activated Kind = iota // the inputs are satisfied, and the task is queued
	Started               // it runs for the first time since its activation
	Resumed               // it runs again after Requeue or Unpark
	Requeued              // it has reached a preemption point
	Parked                // it waits for something outside of the machine
	Finished
	Late     // it has exceeded its deadline
	Retried  // it starts over because it is late
	Dropped  // it has ended because it is late
	Overrun  // a timer fired although the task had not finished
	numKinds = iota
)

// String returns the name of the kind in lower case.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "invalid"
}

var kindNames = [numKinds]string{"activated", "started", "resumed", "requeued", "parked",
	"finished", "late", "retried", "dropped", "overrun"}

// Event reports what a machine did with a task.
type Event struct {
	Time int64 // in nanoseconds
	Task TaskID
	Kind Kind
	N    int // Overrun: how often the timer fired
}

// Stats are the counters of a task.
type Stats struct {
	Activations uint64
	Finished    uint64 // activations that ended, late or not, but not dropped ones
	Late        uint64 // deadlines exceeded, including those of retries
	Retried     uint64
	Dropped     uint64
	Overruns    uint64 // timer arrivals while the task had not finished

	// MaxResponse is the longest time from an activation to its end, and SumResponse the sum of
	// all, in nanoseconds.
	MaxResponse, SumResponse int64
}
