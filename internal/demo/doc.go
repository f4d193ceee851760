// Package demo is "gorxe demo": every operation between two devices, with every
// byte checked, and what it took.
//
// Reading order: command.go (flags and the run as the user sees it), rig.go (two
// devices that reach each other: over AF_XDP on a veth pair of its own, or in
// memory), steps.go (the table of operations), trial.go (how messages are sent,
// awaited and timed), idle.go, verify.go (what is compared), atomics.go, invalidate.go, bulk.go, report.go.
//
// Device A is driven by the demo's own thread (manual progress), device B by a
// thread of its own: as with two hosts, nothing but packets goes from one to
// the other. A row of the table is one operation with one size:
//
//   - p50 and p99 are of single messages. RC: from post to the completion that
//     says that B has it (or that A has it, for READ and atomics). UC and UD, which have no
//     such answer: from post to the arrival at B.
//   - the rate is that of messages in batches of up to 64 outstanding. Filling and
//     comparing buffers is not timed.
//   - count is the number of messages that arrived and were checked. UC and UD do
//     not send lost packets again; lost messages are counted apart, and only
//     whole and correct ones are let through.
package demo
