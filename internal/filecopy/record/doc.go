// Package record encodes what the two sides of a copy tell each other: records about files, which
// travel in blocks from the source to the sink, and messages. docs/send.md describes the protocol.
// All integers are big-endian. The package is pure, and decoding bytes of a peer never panics.
//
// Reading order:
//   - record.go: records in blocks: entries, contents of small files, ends of files
//   - answer.go: answers of the sink: what it wants, what it has stored, what failed
//   - message.go: kinds of messages, handshake
//   - fields.go: decoding of fields
package record
