// Package dump reads RoCEv2 packets from capture files or network interfaces and prints one line
// for each, as text or JSON.
//
// Reading order:
//
//   - dump.go: Dumper, which turns frames into lines, and the summary.
//   - source.go: opening a source; capture files.
//   - listen.go: packet sockets.
//   - print.go, selack.go: a packet as text and as JSON.
//   - save.go: writing pcapng files.
package dump
