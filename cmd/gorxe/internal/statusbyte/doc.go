// Package statusbyte is "gorxe statusbyte": streams of many devices over one queue pair, by package transport/statusbyte.
//
// Reading order: command.go (what send and recv have in common), send.go and source.go (files, standard input, synthetic
// cameras), recv.go, deliver.go and park.go (hashes, directories, and what happens when a directory takes nothing), tail.go (a
// consumer), report.go.
package statusbyte
