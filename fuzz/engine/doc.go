// Package engine has the fuzz targets for the engine, package qp: packets from unknown hosts, a
// peer's answers and a user's work requests. Everything is in the tests.
//
//   - FuzzResponder: QPs of every type and state get arbitrary sequences of packets.
//   - FuzzRequester: a QP with posted work gets arbitrary answers.
//   - FuzzPostSend, FuzzPostRecv: arbitrary work requests are posted.
//
// The fuzzing engine's input is a tape of decisions: packets.Generator and the targets draw from it
// what would otherwise be random. A mutation of the input changes one decision of a sequence, and
// most inputs pass the first checks. Inputs that once found a bug are kept in testdata; go test
// runs them and the seeds.
//
//	go test ./fuzz/engine -run '^$' -fuzz FuzzResponder -fuzztime 5m
//
// harness_test.go has what the targets share: the tape, and memory with a record of which side may
// change each byte.
package engine
