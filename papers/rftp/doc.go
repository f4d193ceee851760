// Package rftp simulates transfers of package transport/rftp on the paths of its paper (Ren et al.,
// "Protocols for Wide-Area Data-intensive Applications", 2012): "gorxe bench rftp". Devices
// exchange real packets in virtual time, so the figures depend on the protocol and the seed, but
// not on the machine. Package live, below this one, measures in real time.
//
// # What follows the paper
//
//   - The paths: 10 Gb/s with a round trip of 49 ms, and 25 Gb/s (what its 40G hosts could use)
//     with 25 us; 1 and 8 streams; memory to memory, with blocks of 64 KiB to 64 MiB.
//   - Its credits (Paper mode): two grants for each block, requests, a control message after each
//     block.
//   - The comparison of WRITE, SEND and READ with 1 and 64 operations outstanding (fio).
//
// # What differs
//
//   - The path MTU is 4096, the largest of RoCE. The programs take no time.
//   - The paper's hosts do not react to congestion. Figures called ramp_..._credits have no
//     congestion control either, so only the credits limit the ramp.
//   - Package live compares with a tool like GridFTP, and measures CPU usage, in real time.
//
// # Reading order
//
//   - experiments.go: the simulations and their figures.
//   - simulate.go: one transfer.
//   - run.go: Run, which also runs package live.
//   - report.go: table, JSON and plot.
package rftp
