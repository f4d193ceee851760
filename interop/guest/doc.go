// Package guest boots virtual machines with a kernel that has rdma_rxe, and runs programs in them.
//
// A guest has no disk, no user on its console and no name on the host. qemu gets its network
// device, the agent's stream, its console and its control channel as open descriptors, and dies
// with the thread that started it. Nothing is left however the controlling process ends.
//
// Reading order:
//
//   - vm.go: a machine's life.
//   - process.go: programs in it.
//
// Package wire is the protocol, package agent its other side, package image what a guest boots
// from.
package guest
