package perf

import "github.com/gorxe/gorxe/roce"

// operation is one row of the table of what perf measures.
type operation struct {
	name    string
	title   string
	wr      roce.Op
	latency bool // else bandwidth
	recv    bool // every message takes a receive of the peer's
	atomic  bool // always 8 bytes
	bytes   int  // by default
	echo    echo
}

// echo says what the server does in a latency test.
type echo uint8

const (
	echoNone  echo = iota // its NIC alone answers
	echoWrite             // it polls memory and WRITEs back
	echoSend              // it waits for a receive and SENDs back
)

// perftest's defaults.
const (
	bwBytes  = 65536
	latBytes = 2
	wordSize = 8 // bytes of an atomic
)

var operations = []operation{
	{name: "write-bw", title: "RDMA_Write BW Test", wr: roce.OpWrite, bytes: bwBytes},
	{name: "write-lat", title: "RDMA_Write Latency Test", wr: roce.OpWrite, latency: true, bytes: latBytes, echo: echoWrite},
	{name: "write-imm-bw", title: "RDMA_Write_With_Imm BW Test", wr: roce.OpWriteImm, recv: true, bytes: bwBytes},
	{name: "read-bw", title: "RDMA_Read BW Test", wr: roce.OpRead, bytes: bwBytes},
	{name: "read-lat", title: "RDMA_Read Latency Test", wr: roce.OpRead, latency: true, bytes: latBytes},
	{name: "send-bw", title: "Send BW Test", wr: roce.OpSend, recv: true, bytes: bwBytes},
	{name: "send-lat", title: "Send Latency Test", wr: roce.OpSend, latency: true, recv: true, bytes: latBytes, echo: echoSend},
	{name: "atomic-bw", title: "Atomic BW Test", wr: roce.OpFetchAdd, atomic: true, bytes: wordSize},
	{name: "atomic-lat", title: "Atomic Latency Test", wr: roce.OpFetchAdd, latency: true, atomic: true, bytes: wordSize},
}

func findOp(name string) *operation {
	for i := range operations {
		if operations[i].name == name {
			return &operations[i]
		}
	}
	return nil
}

func opNames() []string {
	names := make([]string, len(operations))
	for i := range operations {
		names[i] = operations[i].name
	}
	return names
}
