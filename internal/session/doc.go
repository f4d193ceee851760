// Package session contains what the services of gorxe share: the verbs objects of one session,
// and limits on what clients may use.
//
// Reading order:
//   - session.go, network.go: Session, the queue pairs and buffers of one side; how they use the
//     network
//   - budget.go: Budget limits memory
//   - gid.go: CheckGID decides which GIDs a client may name
//   - idle.go: WatchIdle and LimitTime end sessions
//   - accept.go: Acceptor serves clients that connect through the connection manager
package session
