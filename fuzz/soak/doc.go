// Package soak has the soak test: for hours, honest and hostile peers use the same device, over a
// link that loses, reorders, duplicates and corrupts frames. Everything is in the tests.
//
// A device serves an honest client and an attacker, which are two other ports of the same link in
// memory. Real time passes; every device has its own goroutine.
//
//   - Honest peers use every operation of RC, UC and UD, shared receive queues, memory windows and
//     fast registration, over connections that come and go, with and without the connection
//     manager. All data, completions and atomics are compared with a model.
//   - Hostile peers send mutated packets to queue pairs that are connected to them, which share a
//     receive queue with honest ones. They send packets to the queue pairs of others, replay
//     captured packets, and send mutated management datagrams.
//   - Devices open and close, in memory and, as root, over AF_XDP on a veth pair.
//
// At regular intervals everything pauses, and the heap after garbage collection, the resident
// memory, the file descriptors and the goroutines are compared with their values after a warm-up.
// The limits of the device (Expert.MaxMemory, MaxQP, MaxMR, MaxPD) are low, so an object that is
// not released ends the test, too.
//
//	make soak TIME=2h
//	go test -count=1 -timeout 0 -v ./fuzz/soak -args -soak.for=2h -soak.seed=1 -soak.cpu=25
package soak
