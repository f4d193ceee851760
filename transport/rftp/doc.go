// Package rftp transfers data in large blocks over short and long networks: the protocol of Ren et
// al., "Protocols for Wide-Area Data-intensive Applications" (2012), with credits that keep long
// paths full. "gorxe send" and "gorxe recv" copy files with it.
//
// # Usage
//
// One side listens (Listen, Listener.Accept), the other dials (Dial). Peers that exchange their
// parameters by other means use Prepare, Conn.Local and Conn.Join. The result is a Conn with one
// control QP and 1 to 64 data QPs. Both sides may then open sessions, and several at a time. A
// session is a sequence of blocks, for example a file:
//
//	s, err := conn.Open(ctx, params)
//	for more data {
//		b, err := s.GetFree(ctx)
//		b.Len = copy(b.Data, data) // or read a file into b.Data
//		b.Offset = ...
//		err = s.Send(b)
//	}
//	s.End()
//	err = s.Wait(ctx) // until the peer has consumed everything
//
// The peer gets the blocks from Conn.GetReady, in any order, and returns them by Conn.PutFree:
//
//	for {
//		r, err := conn.GetReady(ctx)
//		switch r.Kind {
//		case rftp.Data:
//			write r.Block.Data to the file at r.Block.Offset
//			err = conn.PutFree(r.Block)
//		case rftp.Ended:
//			...
//		}
//	}
//
// Offset, Tag and Meta of a block mean nothing to the protocol: programs put the number of a file,
// a checksum or a kind into them. One block may carry many small files. SendMessage and
// ReceiveMessage exchange small messages, for example for authentication and results.
//
// # Memory
//
// Each side allocates and registers its pools once. The program reads files into the blocks of the
// source's pool and writes files from those of the sink's pool. The NIC sends and receives the same
// memory, so nothing is copied in between. Payload is aligned to Align for direct I/O.
//
// The pool of the sink limits the data in flight. Choose at least twice the product of bandwidth
// and round-trip time.
//
// # Slow and hostile peers
//
// A session whose blocks the program does not return leaves a part of the pool to others (see
// Config.Sessions). A peer can write only to the pool of its connection. It cannot make this side
// allocate more than the pools, MaxParams bytes per session and 64 messages. With Config.Hold, it
// gets the pool only when the program has authenticated it. A peer that violates the protocol loses
// the connection (ErrPeer).
//
// # Wire format
//
// Control messages are SENDs on the control QP. Blocks are RDMA WRITEs with immediate on the data
// QPs, header and payload together. docs/rftp.md describes everything that other implementations
// need. Package core has the protocol.
//
// # Reading order
//
// For maintainers:
//
//   - config.go, agree.go: what programs configure, and what both sides agree on.
//   - conn.go: Conn, its life and its waiters.
//   - dial.go, listen.go: how connections begin.
//   - pool.go: memory of blocks.
//   - sender.go, receive.go: sessions of this side and of the peer; messages.
//   - backlog.go: how many blocks the source queues.
//   - drive.go: completions in, actions of the machine out.
//   - lead.go: callers that run the device (Config.Drive).
package rftp
