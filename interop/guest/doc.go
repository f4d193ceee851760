// Package guest boots virtual machines with a kernel that has rdma_rxe, and runs programs in them.
//
// A guest has no disk, no console user and no name on the host: qemu gets its network device, the agent's stream, its
// console and its control channel as open descriptors, and dies with the thread that started it. So
// whatever way the controlling process ends, nothing is left behind.
//
// Reading order: vm.go (a machine's life), process.go (programs in it), wire (the protocol), agent (its other
// end), image (what a guest boots from).
package guest
