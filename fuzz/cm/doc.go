// Package cm has the fuzz target for the connection manager, package roce/cm: MADs from unknown
// hosts, and from a peer that knows the communication IDs, arrive while a user connects, accepts,
// rejects and disconnects. Everything is in the tests.
//
// The input is a tape of decisions, so most inputs pass the first checks. After each step the CM
// must be within its limits, and everything that it sends must be a well-formed MAD for a known
// peer. At the end it must forget everything.
//
//	go test ./fuzz/cm -run '^$' -fuzz FuzzMAD -fuzztime 30s
package cm
