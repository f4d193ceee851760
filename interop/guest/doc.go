// Package guest boots virtual machines with a kernel that has rdma_rxe, and runs programs in them.
//
// A guest has no disk and leaves nothing on the host. qemu gets the network device, the agent's
// stream, the console and the control channel as open descriptors. It is killed when the thread
// that started it ends, however the controlling process ends.
//
// Reading order:
//
//   - vm.go: a machine's life.
//   - process.go: programs in it.
//
// Package wire is the protocol, package agent its other side, package image what a guest boots
// from.
package guest
