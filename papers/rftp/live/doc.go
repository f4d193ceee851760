// Package live measures copies in real time: "gorxe send" and transport/rftp beside a tool like
// GridFTP, io.Copy, scp and rsync, between two namespaces on a veth pair. It is a part of "gorxe
// bench rftp".
//
// # Fairness
//
// Each side is a process of its own in its own namespace. The tools of a figure alternate within a
// round and change their order every other round. For files and trees, the time is that of the
// whole sending command, from its start, and of writing the data to disk at the receiver: "gorxe
// recv" does that itself, and the benchmark calls syncfs after the other tools. From memory to
// memory, the time begins when the connection exists. The files contain random bytes. After each
// copy the files are compared.
//
// CPU time is that of the processes of both sides, with the kernel's work for them, and of the
// kernel's ksoftirqd threads.
//
// # Reading order
//
//   - figure.go: the figures, their tools, and the targets.
//   - live.go: Config and Run.
//   - host.go: a namespace and the processes in it.
//   - tool.go, daemon.go: the commands of the tools; sshd and the rsync daemon.
//   - measure.go: one measurement.
//   - files.go: the files that are copied, and the comparison.
//   - side.go, memory.go: the processes that send from memory to memory.
//   - loop.go: the same between two devices of this process, on the link in memory.
//   - report.go: table, JSON and plot.
package live
