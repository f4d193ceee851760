// Package recv is the command "gorxe recv", which stores what "gorxe send" sends. The work is done
// by internal/filecopy.
//
// Reading order:
//   - command.go: the command and its flags
//   - serve.go: serving clients
//   - report.go: printing what clients have done
package recv
