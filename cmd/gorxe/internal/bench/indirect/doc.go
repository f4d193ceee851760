// Package indirect is "gorxe bench indirect": the experiments of the dynamic RDMA paper (Li, Shi, Wang, He, Journal of UESTC 47(5), 2018),
// rerun with transport/indirect: 800 WRITEs of 128 KiB one after the other, by the dynamic method and by the traditional one.
//
// # What follows the paper
//
// Size and number of the transfers, payload of a frame, window of 8 frames with fast retransmission, a Gigabit link in both
// directions, failed registrations (FRP) and lost frames (LFP: of requests, answers, data and acknowledgements alike) with
// given probabilities. The traditional method is the paper's: after an invalid answer the initiator resets its timer and asks again when it
// has run out; after a time-out it asks again. A transfer is over when the responder has released it, and the next one begins.
//
// In the experiment with pings, three of them run all the time, of 256, 512 and 1024 bytes, and the frames' payload is varied; faults are not
// injected.
//
// # What it leaves open, and what is taken here
//
// The paper states neither the time-out of requests nor that of data. Requests: 1 ms (--timeout), about what a Gigabit link needs for a
// transfer. Data: the Local ACK Timeout of 1.05 ms (exponent 8). Registration itself takes no time.
//
// # Reading order
//
// experiments.go: what is measured; world.go: links and devices; trial.go: one measurement; pings.go: the background; command.go: the command.
package indirect
