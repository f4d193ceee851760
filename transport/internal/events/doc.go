// Package events has the queue of events of the transports' simulations, which are tests.
//
// # Reading order
//
//   - events.go: Queue.
package events
