// Package filecopytest has a connection in memory for tests of filecopy.
//
// Reading order:
//   - pipe.go: Pipe
package filecopytest
