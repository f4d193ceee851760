// Package peerio helps protocols that talk over TCP to peers they cannot trust. It binds a read or
// write to a context and a time limit, turns transport errors into a protocol's own errors, and
// quotes unexpected bytes in error messages.
//
// Reading order:
//   - deadline.go: Bound
//   - errors.go: Errors, Reason and Quote
package peerio
