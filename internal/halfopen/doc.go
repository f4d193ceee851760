// Package halfopen limits how many connections a server establishes at a time.
//
// A connection request may be forged: its sender never confirms the connection, and the answer is
// in vain. If all slots are taken, a new request therefore replaces an old one, and a peer that
// answers promptly is served even during a flood of forged requests.
//
// Reading order:
//   - halfopen.go: Slots and Slot
package halfopen
