// Package accept accepts connections for the transports, several at a time.
//
// A connection request may be forged: its sender never confirms the connection, and the answer is
// in vain. So requests are answered concurrently and for a bounded time, and when too many are
// being answered, a new request replaces the oldest. A request that is refused or fails never ends
// a listener.
//
// Reading order:
//
//   - accept.go: Acceptor; internal/halfopen replaces requests.
//   - memory.go: memory of connections that were not confirmed is used again.
package accept
