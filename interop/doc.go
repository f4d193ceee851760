// Package interop tests gorxe against the Linux kernel's RDMA stack: rdma_rxe, libibverbs, rdma_cm
// and Debian's tools.
//
// `make interop` boots guests and runs every scenario with gorxe as the active and as the passive
// side. `go run ./interop/run -h` explains how to choose scenarios. The scenarios are the tests in
// this folder, with the build tag "interop".
//
// Reading guide for the tests and the folders below this one:
//
//   - guest: virtual machines with kernel rxe, made of Debian packages.
//   - lab: the Ethernet that connects gorxe with them.
//   - peer: a verbs program in a guest, the kernel's side of a scenario.
//   - rig_test.go: labs, faults and captures that the scenarios share.
//   - ends_test.go, gorxe_end_test.go, kernel_end_test.go: the two sides of a scenario, gorxe and
//     kernel.
//   - verbs_test.go, windows_test.go, faults_test.go, errors_test.go: verbs, memory windows, bad
//     links, errors.
//   - odd_test.go, odd_talks_test.go: a peer that sends unusual packets.
//   - newer_test.go: features of newer kernels.
//   - cm_test.go, cmfaults_test.go, multicast_test.go, rsocket_test.go, programs_test.go: rdma_cm
//     and its programs.
//   - class_test.go: traffic classes and the TOS of rdma_cm.
//   - udp_test.go: gorxe on UDP sockets.
//   - tools_test.go, perftest_test.go: stock tools.
//   - inside_test.go: gorxe inside a guest, on virtio_net.
//   - run_test.go: stock programs under gorxe run, inside a guest.
//   - pyverbs_test.go: rdma-core's test suite, on rxe and under gorxe run.
//   - suiteprograms_test.go: programs of Debian releases under gorxe run, on this host.
//   - runrxe_test.go: stock programs under gorxe run against the same programs on rxe.
//   - fuzz_test.go: gorxe fuzz against the kernel and against gorxe.
//   - statusbyte_test.go, slidingwindow_test.go, indirect_test.go, rftp_test.go: the transports
//     against programs on plain verbs.
//   - run: the table that make interop prints.
package interop
