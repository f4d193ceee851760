// Package indirect is "gorxe bench indirect": the experiments of the dynamic RDMA paper (Li, Shi, Wang, He, Journal of UESTC 47(5), 2018),
// rerun with transport/indirect: 800 WRITEs of 128 KiB in a row, by the dynamic method and by the traditional one.
//
// # What follows the paper
//
// Size and number of the transfers, payload of a frame, window of 8 frames with fast retransmission, a Gigabit link in both
// directions, failed registrations (FRP) and lost frames (LFP: of requests, answers, data and acknowledgements alike) with
// given probabilities. The traditional method is the paper's: after an invalid answer the initiator resets its timer and asks again when it
// has run out; after a time-out it asks again.
//
// In the experiment with pings, three of them run all the time, of 256, 512 and 1024 bytes, and the frames' payload is varied; faults are not
// injected. How often they send is not stated: every millisecond, or, with --ping-interval 0, as soon as the answer is there. In the simulation
// they share the link, and its order, with the transfers; on a veth pair they are the kernel's, and share the CPUs.
//
// # What it leaves open, and what is taken here
//
//   - When the next transfer begins: when the data of the one before has been acknowledged, with either method. Its release, and what registration still has to do
//     for an indirect one, go on meanwhile. (Waiting for the release instead, no failure could save more than the time of its own data, 1 %
//     at 1 %, less than the paper has.) The total time ends when the last transfer has been released.
//   - The time-out of requests: 2 ms (--timeout). It is fitted: each failed registration costs the traditional method one, so the 1.9 % that the paper
//     states at 1 % mean about 1.9 times what a transfer takes, which is 1.1 ms on Gigabit Ethernet. Agreement at 1 % is therefore no evidence.
//   - Retransmission of data is the engine's own, with probes by the measured round trip.
//   - Registration itself takes no time, nor does anything but the link in the simulation (--link memory, in virtual time, as the paper's section
//     2.1); on the veth pair (real time, as in its section 2.2) the link's rate is kept by the plan of faults.
//
// # Reading order
//
// experiments.go: what is measured; world.go: links and devices; trial.go: one measurement; virtual.go: its time
// in the simulation; pings.go: the background; command.go: the command.
package indirect
