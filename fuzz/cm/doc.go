// Package cm holds the fuzz target for the connection manager, package roce/cm: what MADs of
// strangers, and of a peer that knows the communication IDs, may do to it while a user connects,
// accepts, refuses and lets go. All is in the tests.
//
// The input is a tape of decisions, so that most inputs get past the checks that come first. After
// each step the CM has to be within its limits and whatever it sends has to be a well-formed MAD for
// somebody it heard of; at the end it has to forget everything.
//
//	go test ./fuzz/cm -run '^$' -fuzz FuzzMAD -fuzztime 30s
package cm
