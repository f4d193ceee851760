// Package source sends files and trees to a sink (package sink) over a filecopy.Conn.
//
// A walker announces entries, a limited number of them ahead of the sink's answers. Readers read
// the files that the sink wants: several small ones into the same block, and large ones block by
// block, where some blocks are read ahead and sent in order. A file that cannot be read, or that
// changes while it is being read, fails alone.
//
// Reading order:
//   - source.go: Config, Source and Run
//   - path.go: what to send
//   - walk.go: announcing entries
//   - answers.go: answers of the sink
//   - open.go: opening a file, and noticing changes
//   - small.go: files that share blocks
//   - large.go, holes.go: files with blocks of their own; their data and holes
//   - stream.go: standard input
//   - packer.go: packing records into blocks
//   - limiter.go: the limit on the rate
//   - scan.go: counting what will be sent, for a progress bar
package source
