// Package pingpong is "gorxe pingpong": the other end of rdma-core's examples ibv_rc_pingpong, ibv_uc_pingpong,
// ibv_ud_pingpong and ibv_srq_pingpong, as client and as server.
//
// The two ends tell each other their queue pairs over TCP, in lines of fixed length (exchange.go); then each SENDs when it
// has received, until both counts are full (game.go). SRQ plays that on several queue pairs that share their receives.
//
// The examples receive into the memory that they send from, so a server of theirs sends back what it got. With --check the client
// compares it.
package pingpong
