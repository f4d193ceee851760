// Package filecopy copies files and trees between two hosts, over a connection that carries blocks
// of memory from the source to the sink and messages in both directions. It knows nothing about
// RDMA: Conn is the connection, and tests use one in memory.
//
// The client first exchanges a few messages with the server (Connect, Serve), in which both prove
// that they know the token of the server, and the client says what it wants. Then package source
// runs on one side and package sink on the other:
//
//   - The source announces each file, directory and symbolic link by a record. Records travel in
//     the blocks of one session. It announces a limited number of entries before the sink has
//     answered, so neither side ever has the whole list.
//   - The sink answers by messages: it wants a file, or only parts of it, or skips it.
//   - The source sends files that fit into a block with many others as records with their contents,
//     and larger ones in a session of their own, block by block, without holes. Each block and
//     each file has a CRC32C of the data that was read.
//   - The sink verifies checksums, writes blocks at their offsets, and gives a file its name when
//     it is complete and on disk. It answers that the entry is done, or why it failed.
//   - The sink ends with a summary.
//
// docs/send.md describes the protocol in detail.
//
// Reading order:
//   - conn.go: Conn, Block and Ready
//   - handshake.go: Connect and Serve
package filecopy
