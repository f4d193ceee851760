// Package interop proves that gorxe and the Linux kernel's RDMA (rdma_rxe, libibverbs, rdma_cm and the tools of Debian)
// take each other for NICs.
//
// `make interop` boots guests and runs every scenario with gorxe as the active and as the passive side; `go run
// ./interop/run -h` says how to choose some of them. The scenarios are the tests of this folder, behind the build tag
// "interop".
//
// Reading order:
//   - guest: machines with kernel rxe, made of Debian packages; lab: the Ethernet on which gorxe meets them
//   - peer: the kernel's side of a conversation over plain verbs
//   - rig_test.go: labs, faults and captures that the scenarios share; ends_test.go, gorxe_end_test.go, kernel_end_test.go: the two kinds of
//     ends; verbs_test.go, windows_test.go, faults_test.go, errors_test.go: conversations over them; odd_test.go, odd_talks_test.go: a
//     peer that sends what no NIC would; newer_test.go: what only a newer kernel can
//   - cm_test.go, cmfaults_test.go, multicast_test.go, rsocket_test.go: connections and groups, with librdmacm's examples; programs_test.go:
//     how a program of Debian's meets gorxe's own; tools_test.go, perftest_test.go: those programs
//   - inside_test.go: gorxe in the guest, on virtio_net
//   - statusbyte_test.go, indirect_test.go: the transports against programs on plain verbs
//   - run: the table that make interop prints
package interop
