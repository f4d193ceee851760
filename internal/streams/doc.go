// Package streams moves streams of many devices (files, pipes, synthetic cameras) through package
// transport/statusbyte and stores them in directories, one for each device. It is what the command
// "gorxe statusbyte" consists of apart from its flags.
//
// Reading order:
//
//   - source.go: sources; files.
//   - pipe.go: reading pipes, which may be silent.
//   - camera.go: synthetic cameras.
//   - send.go: sending sources.
//   - deliver.go: receiving packets, hashing and storing them.
//   - park.go: packets whose directory cannot be written.
//   - tail.go: reading a directory as a stream.
//   - report.go: the counts of both sides.
package streams
