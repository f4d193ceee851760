// Package dump is "gorxe dump": RoCEv2 packets from a capture file or an interface,
// one line each.
//
// Reading order: command.go (flags, the loop), source.go (what frames come from,
// files), listen.go (interfaces), line.go (a packet as text and as JSON), save.go
// (pcapng for -w).
package dump
