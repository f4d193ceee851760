// Package guard decides which peers gorxe's servers serve. A Guard permits or refuses peers by
// address, counts the peers that a server turned away, and limits the lines that peers can cause in
// the log.
//
// Without --allow, a server accepts peers in the subnets of its interface. The list follows changes
// of the addresses.
//
// Reading order:
//   - guard.go: Guard and what it counts
//   - limiter.go: Limiter, the number of peers that a server serves at a time
//   - log.go: the limit on log lines
//   - flags.go: the flags --allow and --deny
package guard
