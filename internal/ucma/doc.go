// Package ucma implements the kernel interface of rdma_cm, /dev/infiniband/rdma_cm, on the
// connection manager of a roce.Device. Programs that use librdmacm run unmodified on it. The caller
// intercepts the programs' calls and passes them to a [File].
//
// # Objects
//
// A [Device] stands for the character device, and a [File] for one open file of it, which librdmacm
// calls an event channel. Commands arrive as writes ([File.Write]). They create IDs, which are
// listeners, connections or datagram lookups. A program waits for the events of its IDs with the
// command GET_EVENT, or polls the file ([File.FD]): a pipe that holds a byte while there are
// events.
//
// # Queue pairs
//
// The program moves its QPs itself, with the attributes that INIT_QP_ATTR returns. This package
// exchanges the messages of the connection manager and knows only the numbers of QPs. Selective
// repeat is not negotiated, because the attributes of a QP cannot express it.
//
// # Concurrency
//
// Except for the copying of parameters and results, all work is done by the owner of the device's
// loop, as are the connection manager's events. So there are no locks.
//
// # Hostile programs
//
// The program may pass any parameters. Structures are copied once, fields beyond their end are
// zero, and lengths are checked against the fields. The limits are constants: maxIDs, maxFiles,
// maxBacklog, maxWaiters and maxGroups.
//
// Reading order:
//
//   - abi.go: commands, events and how structures are encoded
//   - device.go, file.go: Device, File and its events
//   - command.go: how commands are decoded; the table of commands
//   - id.go: IDs, their addresses and ports
//   - connect.go, handler.go: connections and lookups; events of the connection manager
//   - query.go: QUERY_ROUTE and INIT_QP_ATTR
//   - multicast.go: groups
package ucma
