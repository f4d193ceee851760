// Package syncbuf provides a buffer for text that goroutines write while others read it, such as
// the output of a running process. Its users are tests and measurements.
//
// # Reading order
//
//   - buffer.go: Buffer
package syncbuf
