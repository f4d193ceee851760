// Package send is the command "gorxe send", which copies files to another host, or from it. The
// work is done by internal/filecopy.
//
// Reading order:
//   - command.go: the command and its flags
//   - args.go: sources, hosts and targets
//   - run.go: pushing and pulling
//   - report.go: progress, failures, summary
package send
