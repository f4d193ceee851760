// Package indirect repeats the experiments of the dynamic RDMA paper (Li, Shi, Wang, He, Journal of
// UESTC 47(5), 2018) with package transport/indirect: 800 WRITEs of 128 KiB in a row, with the
// dynamic ("indirect") and with the traditional ("direct") method.
//
// # What follows the paper
//
//   - The size and the number of transfers, the payload of a frame, a window of 8 frames with fast
//     retransmission, and a Gigabit link in both directions.
//   - Registrations fail with a given probability (FRP). Frames are lost with a given probability
//     (LFP): requests, answers, data and acknowledgments alike.
//   - With the traditional method, the initiator asks again when its timer expires. An invalid
//     answer restarts the timer.
//   - In the experiment with pings, three pings with payloads of 256, 512 and 1024 bytes run all
//     the time, the payload of the frames varies, and there are no faults. The paper does not
//     state the interval of the pings: Config.PingInterval. In the simulation the pings share the
//     link with the transfers. On a veth pair they are the kernel's and share the CPUs.
//
// # What the paper leaves open
//
//   - A transfer begins when the data of the previous one has been acknowledged, with both
//     methods. The release of the previous transfer, and the registration of an indirect one,
//     continue meanwhile. (If a transfer waited for the release of the previous one, a failure
//     could save only the time of its own data: 1 % at 1 %, less than the paper reports.) The
//     total time ends with the release of the last transfer.
//   - The request timeout is 2 ms. It is fitted: each failed registration costs the traditional
//     method one timeout, so the 1.9 % of the paper at 1 % mean about 1.9 times the duration of a
//     transfer, which is 1.1 ms on Gigabit Ethernet. Agreement at 1 % is therefore no evidence.
//   - The engine retransmits data, with probes timed by the measured round trip.
//   - Registration takes no time. In the simulation (virtual time, as in section 2.1 of the
//     paper) nothing but the link takes time. On a veth pair (real time, as in section 2.2)
//     package loopback limits the rate.
//
// # Reading order
//
//   - experiments.go: the experiments and the paper's figures.
//   - bench.go: Config and Run.
//   - trial.go: one measurement: the two sides and their connection.
//   - transfers.go: the initiator's transfers and the responder.
//   - virtual.go: the simulation, with simulated pings.
//   - losses.go: the frame losses of the simulation.
//   - pings.go: pings between the kernels of a veth pair.
//   - report.go: table, JSON and plot.
package indirect
