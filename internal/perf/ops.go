package perf

import "github.com/gorxe/gorxe/roce"

// Operation is an operation that a test can measure.
type Operation struct {
	Name    string
	Title   string // of perftest's program
	Op      roce.Op
	Latency bool // false: bandwidth
	Recv    bool // each message needs a receive of the peer
	Atomic  bool // messages of 8 bytes
	Bytes   int  // default size of a message
	Reply   Reply
}

// Reply tells how the server of a latency test replies to a message.
type Reply uint8

// The kinds of reply.
const (
	ReplyNone  Reply = iota // the device replies by itself
	ReplyWrite              // the server polls its memory and WRITEs back
	ReplySend               // the server waits for a receive completion and SENDs back
)

// The default sizes of perftest.
const (
	bwBytes  = 65536
	latBytes = 2
)

// AtomicBytes is the size of an atomic operation.
const AtomicBytes = 8

var operations = []Operation{
	{Name: "write-bw", Title: "RDMA_Write BW Test", Op: roce.OpWrite, Bytes: bwBytes},
	{
		Name: "write-lat", Title: "RDMA_Write Latency Test", Op: roce.OpWrite, Latency: true,
		Bytes: latBytes, Reply: ReplyWrite,
	},
	{
		Name: "write-imm-bw", Title: "RDMA_Write_With_Imm BW Test", Op: roce.OpWriteImm, Recv: true,
		Bytes: bwBytes,
	},
	{Name: "read-bw", Title: "RDMA_Read BW Test", Op: roce.OpRead, Bytes: bwBytes},
	{Name: "read-lat", Title: "RDMA_Read Latency Test", Op: roce.OpRead, Latency: true,
		Bytes: latBytes},
	{Name: "send-bw", Title: "Send BW Test", Op: roce.OpSend, Recv: true, Bytes: bwBytes},
	{
		Name: "send-lat", Title: "Send Latency Test", Op: roce.OpSend, Latency: true, Recv: true,
		Bytes: latBytes, Reply: ReplySend,
	},
	{Name: "atomic-bw", Title: "Atomic BW Test", Op: roce.OpFetchAdd, Atomic: true,
		Bytes: AtomicBytes},
	{
		Name: "atomic-lat", Title: "Atomic Latency Test", Op: roce.OpFetchAdd, Latency: true,
		Atomic: true,
		Bytes:  AtomicBytes,
	},
}

func findOperation(name string) *Operation {
	for i := range operations {
		if operations[i].Name == name {
			return &operations[i]
		}
	}
	return nil
}

// OperationNames returns the names of all operations.
func OperationNames() []string {
	names := make([]string, len(operations))
	for i := range operations {
		names[i] = operations[i].Name
	}
	return names
}
