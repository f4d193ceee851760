// Package nldev answers requests of the netlink protocol NETLINK_RDMA, by which libibverbs and the
// command rdma of iproute2 find RDMA devices. [Answer] is a pure function of a request and a
// [Device].
//
// Reading order:
//   - answer.go: Device, and the answers
//   - objects.go: Objects, and lists of them
//   - message.go: encoding of messages and attributes
package nldev
