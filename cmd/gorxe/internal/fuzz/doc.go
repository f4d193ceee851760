// Package fuzz is the command "gorxe fuzz". Package internal/packetfuzz does its work.
//
// Reading order:
//   - command.go: the flags
//   - print.go: the report
package fuzz
