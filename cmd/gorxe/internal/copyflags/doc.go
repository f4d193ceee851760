// Package copyflags has what the commands "gorxe send" and "gorxe recv" share: flags about
// connections, tokens and paths, and texts about names.
//
// Reading order:
//   - copyflags.go: Flags
//   - garbage.go: how much garbage the process collects at a time
//   - text.go: names and errors that a peer may have chosen
package copyflags
