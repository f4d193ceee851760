// Package sink stores what a source (package source) sends over a filecopy.Conn.
//
// The sink trusts nothing that the peer says. All names are single path elements, relative to
// directories that were opened without following symbolic links, below one os.Root. A file appears
// under its name when its checksums were verified and its data is on disk. What remains of a large
// file after a failure can be resumed (package part).
//
// One goroutine handles records in their order. Workers do what waits for the disk: they look at
// existing files, create directories, and write blocks. Committers sync and rename many files
// together. While the workers are busy, blocks are not given back to the connection, so a slow disk
// slows down its own transfer only.
//
// Reading order:
//   - sink.go: Config, Sink and Run: events of the connection
//   - order.go: blocks in their order
//   - records.go: records, in their order
//   - tree.go: directories
//   - check.go: what happens to an entry: wanted, skipped or refused
//   - lock.go: files that other sessions may write at the same time
//   - space.go: space that files in progress need
//   - file.go: files that are being received
//   - commit.go: syncing and renaming
//   - remove.go: deleting what the source does not have
//   - answers.go: sending answers
//   - target.go: the target directory, and the name of a single file
//   - writer.go: a sink that writes one file to an io.Writer
package sink
