// Package due keeps items in the order of the time at which they are due.
//
// Reading order:
//   - due.go: Queue
package due
