// Package up is "gorxe up": the NIC in the foreground, and the services that
// answer "gorxe ping" and "gorxe perf", rping and perftest.
//
// Reading order: command.go (the life of the command), show.go (what it prints).
package up
